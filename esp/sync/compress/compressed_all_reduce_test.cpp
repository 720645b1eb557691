#include "esp/sync/compress/compressed_all_reduce.h"

#include <mutex>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/buckets.h"
#include "esp/sync/compress/power_sgd.h"
#include "esp/sync/compress/reference_feedback.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/testing.h"

namespace esp::sync {
namespace {

constexpr int kRanks = 4, kSteps = 4;
const std::vector<std::vector<int64_t>> kUnits = {{700, 3, 110}, {500}, {64, 32, 130, 20}};

Options options_of(const std::string& compress, const std::string& feedback) {
  Options options;
  options.compress = compress;
  options.feedback = feedback;
  options.first_bucket_mb = 128 * 4.0 / (1 << 20);
  options.bucket_mb = 512 * 4.0 / (1 << 20);
  options.seed = 5;
  options.deterministic = true;
  return options;
}

float gradient(int rank, int step, int64_t element) {
  const auto at = static_cast<uint64_t>(element);
  return static_cast<float>(random_unit(static_cast<uint64_t>(rank), static_cast<uint64_t>(step), at) - 0.5);
}

// Gradients of one rank after `finish`, by step, and the bytes it sent in `finish`.
struct RankResult {
  std::vector<Values<float>> steps;
  uint64_t bytes = 0;
};

RankResult train(comm::Communicator* comm, const Options& options, DType storage) {
  StrategyFixture made(kUnits, comm, options, storage);
  RankResult seen;
  for (int step = 0; step < kSteps; ++step) {
    made.strategy->begin_step();
    made.strategy->begin_pass({});
    for (nn::Parameter& p : made.list.all()) p.weight.fetch_value();
    made.strategy->begin_backward();
    for (nn::Parameter& p : made.list.all()) {
      auto value = [&](int64_t i) { return gradient(comm->rank(), step, made.first(p) + i); };
      if (storage == DType::f32) made.deliver<float>(p, value);
      if (storage == DType::f64) made.deliver<double>(p, value);
    }
    made.strategy->end_pass();
    made.strategy->finish();
    Values<float> all;
    for (const auto& unit : made.list.units())
      for (int64_t i = 0; i < unit.count; ++i)
        all.push_back(storage == DType::f32 ? unit.grads.as<float>()[i]
                                            : static_cast<float>(unit.grads.as<double>()[i]));
    seen.steps.push_back(all);
    made.strategy->after_step();
  }
  for (const NamedGroup& group : made.strategy->groups()) seen.bytes += bytes_sent_by(*group.comm);
  return seen;
}

std::vector<GradientBucket> buckets_of(nn::ParameterList& list, const Options& options) {
  return make_gradient_buckets(list, static_cast<int64_t>(options.first_bucket_mb * (1 << 20)),
                               static_cast<int64_t>(options.bucket_mb * (1 << 20)), DType::f32);
}

TEST(CompressedAllReduce, MatchesOneProcessReferenceBitForBitAndSendsTheExpectedBytes) {
  for (const auto& pair : {std::pair<std::string, std::string>{"topk:0.05", "ef"},
                           {"int8:64", "none"},
                           {"sign", "doublesqueeze"},
                           {"qsgd:16:64", "none"},
                           {"topk:0.1", "neolithic:2"},
                           {"topk:0.1", "ef21"},
                           {"randomk:0.1", "none"}}) {
    const std::string &compress = pair.first, &feedback = pair.second;
    const Options options = options_of(compress, feedback);
    const auto compressor = make_compressor(compress);
    // Reference: all ranks in one process, bucket by bucket.
    nn::ParameterList list;
    int64_t total = 0;
    for (size_t u = 0; u < kUnits.size(); ++u) {
      list.begin_unit(fmt::format("unit{}", u));
      for (size_t p = 0; p < kUnits[u].size(); ++p, total += kUnits[u][p - 1])
        list.add(fmt::format("p{}.{}", u, p), {kUnits[u][p]}, nn::Init::zeros(), false);
    }
    std::vector<Values<float>> want(kSteps, Values<float>(static_cast<size_t>(total)));
    std::vector<uint64_t> bytes(kRanks);
    const auto buckets = buckets_of(list, options);
    EXPECT_GT(buckets.size(), 2u);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const GradientBucket& bucket = buckets[b];
      const AggregationMethod method =
          cheapest_method(*compressor, bucket.count(), DType::f32, kRanks, {find_feedback(feedback).two_phase});
      ReferenceFeedback<float> all(*compressor, method, kRanks, static_cast<size_t>(bucket.count()),
                                   options.seed + b * 0x9e3779b97f4a7c15u, 1);
      for (int step = 0; step < kSteps; ++step) {
        std::vector<Values<float>> g(kRanks);
        for (int rank = 0; rank < kRanks; ++rank)
          for (int64_t i = bucket.begin; i < bucket.end; ++i)
            g[static_cast<size_t>(rank)].push_back(gradient(rank, step, i));
        const Values<float> out = all.run(feedback, g);
        std::copy(out.begin(), out.end(), want[static_cast<size_t>(step)].begin() + bucket.begin);
      }
      const uint64_t rounds = feedback == "neolithic:2" ? 2 : 1;
      for (int rank = 0; rank < kRanks; ++rank)
        bytes[static_cast<size_t>(rank)] +=
            kSteps * rounds * bytes_sent(method, *compressor, bucket.count(), DType::f32, kRanks, rank);
    }
    with_ranks(kRanks, [&](comm::Communicator* comm) {
      const RankResult seen = train(comm, options, DType::f32);
      for (size_t step = 0; step < kSteps; ++step)
        EXPECT_TRUE(same_bits(seen.steps[step], want[step])) << compress << ' ' << feedback << " step " << step;
      EXPECT_EQ(seen.bytes, bytes[static_cast<size_t>(comm->rank())]) << compress << ' ' << feedback;
    });
  }
}

TEST(CompressedAllReduce, EqualsPlainAllReduceWithIdentityCompressor) {
  Options plain = options_of("none", "none");
  for (DType storage : {DType::f32, DType::f64})
    with_ranks(kRanks, [&](comm::Communicator* comm) {
      const RankResult want = train(comm, plain, storage), seen = train(comm, options_of("identity", "none"), storage);
      for (size_t step = 0; step < kSteps; ++step)
        for (size_t i = 0; i < want.steps[step].size(); ++i)
          ASSERT_NEAR(seen.steps[step][i], want.steps[step][i], storage == DType::f32 ? 0 : 1e-6);
    });
}

TEST(CompressedAllReduce, SupportsPowerSgd) {
  std::vector<RankResult> seen(kRanks);
  with_ranks(kRanks, [&](comm::Communicator* comm) {
    seen[static_cast<size_t>(comm->rank())] = train(comm, options_of("powersgd:2", "none"), DType::f32);
  });
  for (const RankResult& other : seen) EXPECT_EQ(other.steps, seen[0].steps);
}

TEST(CompressedAllReduce, RejectsIncompatibleOptions) {
  auto refused = [](const std::string& compress, const std::string& feedback, auto change) {
    Options options = options_of(compress, feedback);
    change(options);
    try {
      StrategyFixture made(kUnits, nullptr, options, DType::f32);
    } catch (const UsageError&) {
      return true;
    }
    return false;
  };
  auto nothing = [](Options&) {};
  EXPECT_FALSE(refused("topk:0.1", "ef", nothing));
  EXPECT_TRUE(refused("topk:0.1", "none", nothing));   // this compressor without feedback diverges in theory
  EXPECT_TRUE(refused("randomk:0.1", "ef", nothing));  // this compressor with ef diverges in theory
  EXPECT_TRUE(refused("topk:100000", "ef", nothing));  // K is larger than the number of elements of the bucket
  EXPECT_TRUE(refused("powersgd:0", "none", nothing));
  EXPECT_TRUE(refused("powersgd", "ef21", nothing));
  EXPECT_TRUE(refused("topk:0.1", "ef", [](Options& o) { o.buckets = "cycle"; }));
  EXPECT_TRUE(refused("topk:0.1", "ef", [](Options& o) { o.wire = "bf16"; }));
  EXPECT_THROW(check_compression(options_of("none", "ef")), UsageError);
}

}  // namespace
}  // namespace esp::sync
