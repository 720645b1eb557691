// Compares the delayed update with its recurrence. After step W: w[k+1] = update(w[k], gradient at w[k−1]). Step W
// changes nothing. Before step W there is no delay.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "esp/kernel/elementwise.h"
#include "esp/nn/layers/head.h"
#include "esp/nn/layers/mlp.h"
#include "esp/obs/temporary_folder.h"
#include "esp/sync/tier/offloaded_optimizer.h"
#include "esp/sync/tier/testing.h"

namespace esp::sync {
namespace {

// A test problem: weights, and gradients as a function of weights and step, so that no two steps are equal.
struct TestProblem {
  explicit TestProblem(const tensor::Context& c) : context(c) {}
  virtual ~TestProblem() = default;
  virtual void backward(int64_t step) = 0;

  void make(DType type) {
    list.materialize(context, type, true);
    list.initialise(3, context.stream);
  }
  std::vector<std::vector<char>> values() const {
    std::vector<std::vector<char>> all;
    for (const auto& unit : list.units()) all.push_back(bytes_of(unit.values));
    return all;
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& unit : list.units()) sum += unit.values.bytes();
    return sum;
  }

  const tensor::Context context;
  nn::ParameterList list;
};

// Loss: Σ a[i]·(w[i] − c[i])² / 2, plus noise.
struct Quadratic final : TestProblem {
  Quadratic(const tensor::Context& c, DType type) : TestProblem(c) {
    list.begin_unit("u");
    list.add("w", {61, 7}, nn::Init::normal(1), true);
    list.add("b", {7}, nn::Init::normal(1), false);
    make(type);
  }
  void backward(int64_t step) override {
    auto& unit = list.units()[0];
    const tensor::Tensor w = tensor::cast_to(context, unit.values, DType::f64, device::MemoryCategory::other);
    tensor::Tensor g = tensor::empty(context, {unit.count}, DType::f64, device::MemoryCategory::other);
    kernel::fill_normal(g.data(), 0, 0.05, 11, static_cast<uint64_t>(step), 0, unit.count, DType::f64, context.stream);
    for (int64_t i = 0; i < unit.count; ++i)
      g.as<double>()[i] += (0.5 + static_cast<double>(i % 13) / 13) * (w.as<double>()[i] - static_cast<double>(i % 5));
    kernel::cast(unit.grads.data(), unit.grads.dtype(), g.data(), DType::f64, unit.count, context.stream);
  }
};

// A gated MLP and a classifier on top of it; the inputs differ in every step.
struct SmallModel final : TestProblem {
  SmallModel(const tensor::Context& c, DType type) : TestProblem(c), tape(c) {
    list.begin_unit("block");
    nn::MlpOptions options;
    options.dim = 6;
    options.ffn = 11;
    options.gated = true;
    options.init = options.out_init = nn::Init::normal(0.5);
    block.emplace(list, "mlp", options);
    list.begin_unit("head");
    head.emplace(list, "head", 6, 5, true, nn::Init::normal(0.5));
    make(type);
  }
  void backward(int64_t step) override {
    tensor::Tensor x = tensor::empty(context, {4, 6}, list.units()[0].values.dtype(), device::MemoryCategory::other);
    kernel::fill_normal(x.data(), 0, 1, 13, static_cast<uint64_t>(step), 0, x.count(), x.dtype(), context.stream);
    tensor::Tensor targets = tensor::empty(context, {4}, DType::i32, device::MemoryCategory::other);
    for (int32_t i = 0; i < 4; ++i) targets.as<int32_t>()[i] = static_cast<int32_t>(i + step) % 5;
    list.zero_gradients(context.stream);
    nn::ForwardContext pass;
    pass.tape = &tape;
    autograd::backward(tape, head->loss(pass, (*block)(pass, tape.leaf(x)), targets, 0.25));
    tape.clear();
  }
  autograd::Tape tape;
  std::optional<nn::Mlp> block;
  std::optional<nn::Head> head;
};

double rate(int64_t step) {
  return 1e-2 / static_cast<double>(step + 1);
}
double scale(int64_t step) {
  return step % 2 ? 1 : 0.5;
}

struct DelayedUpdateTest : testing::TestWithParam<std::tuple<const char*, const char*, DType>> {
  device::MemoryAccount account;
  device::MemoryPool pool{account}, host{account, device::MemoryTier::host};
  tensor::Context context{{}, &pool};
  device::HostLink link;
  obs::TemporaryFolder folder;
  optim::OptimizerOptions rule{.name = "adamw", .weight_decay = 0.1};

  std::unique_ptr<OffloadedOptimizer> offloaded(TestProblem& problem, int64_t delay_after) {
    TierOptions options;
    options.placement = std::get<1>(GetParam());
    options.tile = 100;
    options.delay_after = delay_after;
    options.host_threads = 2;
    options.file.folder = folder.path();
    return make_offloaded_optimizer(rule, problem.list, context.stream, host, link, optim::all_units(problem.list),
                                    options);
  }
  std::unique_ptr<TestProblem> problem() {
    const DType type = std::get<2>(GetParam());
    if (std::get<0>(GetParam()) == std::string("quadratic")) return std::make_unique<Quadratic>(context, type);
    return std::make_unique<SmallModel>(context, type);
  }

  // The expected weights after every step, computed by the recurrence with the device optimizer, without offload.
  using Values = std::vector<std::vector<char>>;
  std::vector<Values> recurrence(int64_t delay_after, int64_t steps) {
    const auto p = problem();
    auto optimizer = optim::make_optimizer(rule, p->list, context);
    std::vector<Values> trajectory;
    Values kept;
    for (int64_t k = 0; k < steps; ++k) {
      p->backward(k);  // computes the gradient at w[k]
      if (k < delay_after) {
        optimizer->step(rate(k), scale(k));
      } else {
        Values fresh;
        for (auto& unit : p->list.units()) fresh.push_back(bytes_of(unit.grads));
        for (size_t u = 0; u < kept.size(); ++u)
          std::memcpy(p->list.units()[u].grads.data(), kept[u].data(), kept[u].size());
        if (k > delay_after) optimizer->step(rate(k - 1), scale(k - 1));
        kept = fresh;
      }
      trajectory.push_back(p->values());
    }
    return trajectory;
  }
};

TEST_P(DelayedUpdateTest, MatchesTheDelayedUpdateFormulaBitForBit) {
  for (const int64_t delay_after : {1, 4}) {
    const auto p = problem();
    auto optimizer = offloaded(*p, delay_after);
    const auto expected = recurrence(delay_after, 12);
    for (int64_t k = 0; k < 12; ++k) {
      p->backward(k);
      optimizer->step(rate(k), scale(k));
      EXPECT_EQ(p->values(), expected[static_cast<size_t>(k)]) << delay_after << " " << k;
    }
    const auto first = static_cast<size_t>(delay_after);
    EXPECT_EQ(expected[first], expected[first - 1]);
    EXPECT_NE(expected[first + 1], expected[first]);
    EXPECT_EQ(optimizer->num_steps(), 12);
  }
}

TEST_P(DelayedUpdateTest, AcceptsGradientsDuringAnUpdateInFlight) {
  const auto p = problem();
  auto optimizer = offloaded(*p, 2);
  const auto expected = recurrence(2, 10);
  for (int64_t k = 0; k < 10; ++k) {
    p->backward(k);
    for (size_t u = p->list.units().size(); u-- > 0;) {
      auto& unit = p->list.units()[u];
      for (int64_t end = unit.count; end > 0; end -= 50) {
        const int64_t begin = std::max<int64_t>(0, end - 50);
        optimizer->take_gradient(u, begin, unit.grads.slice(begin, end));
      }
      // Overwrites the device's gradients: the optimizer must use those that take_gradient received.
      kernel::fill(unit.grads.data(), 1e4, unit.count, unit.grads.dtype(), context.stream);
    }
    optimizer->step(rate(k), scale(k));
    EXPECT_EQ(p->values(), expected[static_cast<size_t>(k)]) << k;
  }
}

TEST_P(DelayedUpdateTest, ResumesBitForBit) {
  for (const int64_t stop : {2, 4, 7}) {  // before the delay begins (step 3), after its first step, and later
    const auto first = problem(), second = problem();
    auto before = offloaded(*first, 3);
    const auto expected = recurrence(3, 12);
    for (int64_t k = 0; k < stop; ++k) {
      first->backward(k);
      before->step(rate(k), scale(k));
    }
    auto after = offloaded(*second, 3);
    for (size_t u = 0; u < first->list.units().size(); ++u)
      std::memcpy(second->list.units()[u].values.data(), first->values()[u].data(), first->values()[u].size());
    const auto from = before->states(), to = after->states();
    ASSERT_EQ(from.size(), to.size());
    int64_t count = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      ASSERT_EQ(from[i].slot, to[i].slot);
      set_bytes(to[i], bytes_of(from[i]).data());
      count += from[i].values.count();
    }
    EXPECT_EQ(count, 3 * first->list.count());
    after->set_num_steps(before->num_steps());
    after->states_restored();
    for (int64_t k = stop; k < 12; ++k) {
      second->backward(k);
      after->step(rate(k), scale(k));
      EXPECT_EQ(second->values(), expected[static_cast<size_t>(k)]) << stop << " " << k;
    }
  }
}

TEST_P(DelayedUpdateTest, TransfersGradientsInEveryStepAndWeightsExceptInFirstDelayedStep) {
  const auto p = problem();
  auto optimizer = offloaded(*p, 2);
  const uint64_t down = link.bytes_down(), up = link.bytes_up();
  for (int64_t k = 0; k < 6; ++k) {
    p->backward(k);
    optimizer->step(rate(k), scale(k));
  }
  EXPECT_EQ(link.bytes_down() - down, 6 * p->bytes());
  EXPECT_EQ(link.bytes_up() - up, 5 * p->bytes());
  EXPECT_EQ(account.use(device::MemoryCategory::gradient, device::MemoryTier::host).current, 2 * p->bytes());
}

INSTANTIATE_TEST_SUITE_P(Objectives, DelayedUpdateTest,
                         testing::Combine(testing::Values("quadratic", "model"), testing::Values("host", "file"),
                                          testing::Values(DType::bf16, DType::f32)),
                         [](const auto& row) {
                           return fmt::format("{}_{}_{}", std::get<0>(row.param), std::get<1>(row.param),
                                              name_of(std::get<2>(row.param)));
                         });

}  // namespace
}  // namespace esp::sync
