#include "esp/sync/compress/one_bit_adam.h"

#include "esp/base/error.h"
#include "esp/kernel/optimizer_step.h"
#include "esp/sync/compress/reference_feedback.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

constexpr int kRanks = 4, kSteps = 9, kWarmUp = 4;
// the last unit has fewer elements than ranks
const std::vector<std::vector<int64_t>> kUnits = {{300, 3}, {1000}, {2}};
constexpr double kRate = 0.01, kScale = 0.5;

optim::OptimizerOptions adamw() {
  optim::OptimizerOptions o;
  o.beta2 = 0.95;
  o.weight_decay = 0.1;
  return o;
}

Options one_bit() {
  Options o;
  o.compress = "sign";
  o.feedback = "onebit_adam";
  o.onebit_warmup = kWarmUp;
  o.deterministic = true;
  return o;
}

// Every seventh element has no gradient.
float gradient(int rank, int step, int64_t element) {
  if (element % 7 == 0) return 0;
  return static_cast<float>(random_unit(static_cast<uint64_t>(rank + 10 * step), 3, static_cast<uint64_t>(element)) -
                            0.3);
}

bool decays(size_t unit) {
  return unit == 1;
}

// The weights of a rank after all steps, and the bytes it sent in the last step.
struct RankResult {
  Values<float> values, m;
  uint64_t bytes = 0;
  std::vector<double> sums;
};

RankResult train(comm::Communicator* comm) {
  StrategyFixture made(kUnits, comm, one_bit(), DType::f32);
  for (nn::Parameter& p : made.list.all()) p.decay = decays(static_cast<size_t>(p.unit));
  made.strategy->fill([](nn::ParameterList::Unit& unit) {
    for (int64_t i = 0; i < unit.count; ++i) unit.values.as<float>()[i] = static_cast<float>(i % 5) * 0.1f;
  });
  const auto optimizer = made.strategy->make_optimizer(adamw());
  RankResult seen;
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t before = bytes_sent_by(*comm);
    made.strategy->begin_step();
    made.strategy->begin_pass({});
    for (nn::Parameter& p : made.list.all()) p.weight.fetch_value();
    made.strategy->begin_backward();
    for (nn::Parameter& p : made.list.all())
      made.deliver<float>(p, [&](int64_t i) { return gradient(comm->rank(), step, made.first(p) + i); });
    made.strategy->end_pass();
    made.strategy->finish();
    seen.sums = made.strategy->sums_of_squares();
    optimizer->step(kRate, kScale);
    made.strategy->after_step();
    seen.bytes = bytes_sent_by(*comm) - before;
  }
  for (const auto& unit : made.list.units())
    seen.values.insert(seen.values.end(), unit.values.as<float>(), unit.values.as<float>() + unit.count);
  for (const optim::OptimizerState& state : optimizer->states())
    if (state.slot == "m")
      seen.m.insert(seen.m.end(), state.values.as<float>(), state.values.as<float>() + state.values.count());
  return seen;
}

// Reference in one process: Adam with the sum of gradients, then the frozen steps, unit by unit.
RankResult emulate() {
  RankResult all;
  const auto sign = make_compressor("sign");
  int64_t first = 0;
  for (size_t u = 0; u < kUnits.size(); ++u) {
    size_t count = 0;
    for (int64_t n : kUnits[u]) count += static_cast<size_t>(n);
    ReferenceFeedback<float> ranks(*sign, AggregationMethod::two_phase, kRanks, count, 0, 1.0 / kRanks);
    Values<float> w(count), m(count), v(count), g(count);
    for (size_t i = 0; i < count; ++i) w[i] = static_cast<float>(i % 5) * 0.1f;
    for (int step = 0; step < kSteps; ++step) {
      const auto of = [&](int rank, size_t i) { return gradient(rank, step, first + static_cast<int64_t>(i)); };
      if (step < kWarmUp) {
        for (size_t i = 0; i < count; ++i) {
          g[i] = of(0, i);
          for (int rank = 1; rank < kRanks; ++rank) g[i] += of(rank, i);
        }
        kernel::AdamStep adam;
        adam.lr = kRate;
        adam.beta2 = 0.95;
        adam.weight_decay = decays(u) ? 0.1 : 0;
        adam.t = step + 1;
        adam.grad_scale = kScale;
        kernel::adam_step(
            {.master = w.data(), .grad = g.data(), .m = m.data(), .v = v.data(), .count = static_cast<int64_t>(count)},
            adam, {});
        continue;
      }
      std::vector<Values<float>> own(kRanks, m);
      for (int rank = 0; rank < kRanks; ++rank)
        for (size_t i = 0; i < count; ++i)
          own[static_cast<size_t>(rank)][i] =
              m[i] * 0.9f + of(rank, i) * static_cast<float>(kScale * kRanks) * static_cast<float>(1 - 0.9);
      m = ranks.neolithic(own, 1);
      for (size_t i = 0; i < count; ++i) {
        if (!(v[i] > 0)) m[i] = 0;
        const float rate = v[i] > 0 ? 1 / (std::sqrt(v[i]) + 1e-8f) : 0;
        float change = m[i] * rate;
        if (decays(u)) change = change + 0.1f * w[i];
        w[i] = w[i] + static_cast<float>(-kRate) * change;
      }
    }
    all.values.insert(all.values.end(), w.begin(), w.end());
    all.m.insert(all.m.end(), m.begin(), m.end());
    first += static_cast<int64_t>(count);
  }
  return all;
}

TEST(OneBitAdam, MatchesOneProcessReferenceBitForBitAndSendsTheExpectedBytes) {
  const RankResult want = emulate();
  const auto sign = make_compressor("sign");
  with_ranks(kRanks, [&](comm::Communicator* comm) {
    const RankResult seen = train(comm);
    EXPECT_TRUE(same_bits(seen.values, want.values));
    EXPECT_EQ(seen.m, want.m);
    size_t bytes = (kRanks - 1) * sizeof(double) * kUnits.size();  // bytes of each unit's sum of squares
    for (const auto& unit : kUnits) {
      int64_t count = 0;
      for (int64_t n : unit) count += n;
      bytes += bytes_sent(AggregationMethod::two_phase, *sign, count, DType::f32, kRanks, comm->rank());
    }
    EXPECT_EQ(seen.bytes, bytes);
    double own = 0;  // squared gradient norm of the first unit, averaged over the ranks
    for (int rank = 0; rank < kRanks; ++rank)
      for (int64_t i = 0; i < 303; ++i) own += std::pow(double{gradient(rank, kSteps - 1, i)} * kRanks, 2) / kRanks;
    EXPECT_NEAR(seen.sums[0], own, 1e-4 * own);
  });
}

TEST(OneBitAdam, LeavesElementsWithoutGradientsUnchanged) {
  const RankResult want = emulate();
  for (size_t i = 0; i < 303; i += 7) EXPECT_EQ(want.values[i], static_cast<float>(i % 5) * 0.1f);
  EXPECT_NE(want.values[1], 0.1f);
}

TEST(OneBitAdam, RejectsIncompatibleOptions) {
  const auto refused = [](auto change) {
    Options options = one_bit();
    change(options);
    EXPECT_THROW(check_one_bit_adam(options), UsageError);
  };
  refused([](Options& o) { o.compress = "topk"; });
  refused([](Options& o) { o.method = "zero1"; });
  refused([](Options& o) { o.onebit_warmup = 0; });
  StrategyFixture made(kUnits, nullptr, one_bit(), DType::f32);
  EXPECT_THROW(made.strategy->make_optimizer({.name = "sgd"}), UsageError);
}

}  // namespace
}  // namespace esp::sync
