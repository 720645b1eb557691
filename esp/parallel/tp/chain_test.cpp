#include "esp/parallel/tp/chain.h"

#include <gtest/gtest.h>

#include "esp/autograd/testing.h"
#include "esp/parallel/testing.h"

namespace esp::parallel {
namespace {

using enum MatrixSharding;
using tensor::Tensor;

constexpr int64_t kWidths[] = {24, 36, 60, 12}, kColumns = 5;

ChainPlan plan(int ranks, std::vector<MatrixSharding> cuts) {
  return plan_chain(kWidths, kColumns, ranks, std::move(cuts));
}

TEST(Chain, CostOfThreeMatricesMatchesFormulas) {
  for (const int t : {2, 3, 4}) {
    const ChainPlan first = plan(t, {out, in, in}), second = plan(t, {out, out, in});
    EXPECT_EQ(first.elements_sent(), (t - 1) * kColumns * (kWidths[2] + 2 * kWidths[3]));
    EXPECT_EQ(second.elements_sent(), (t - 1) * kColumns * (kWidths[1] + 2 * kWidths[3]));
    EXPECT_EQ(first.cost_text(), "(t−1)/t·b·(d₂ + 2d₃)");
    EXPECT_EQ(second.cost_text(), "(t−1)/t·b·(d₁ + 2d₃)");
  }
}

// Runs every combination: y must equal the y of one rank, and the bytes sent must equal the plan.
TEST(Chain, EveryShardingGivesSameResultAndPlannedTraffic) {
  ModelRank single_rank;
  const Tensor one = run_chain(single_rank.context, nullptr, plan(1, {whole, whole, whole}));
  for (const int t : {2, 3, 4})
    for (const ChainPlan& choice : all_chains(kWidths, kColumns, t)) {
      std::vector<uint64_t> sent(static_cast<size_t>(t));
      run_model_ranks(
          t,
          [&](comm::Communicator* world) {
            ModelRank holder(world, {.tp = t});
            TpCommunicator tp_comm(*world, std::chrono::seconds(60), nullptr);
            const auto bytes = [&] {
              uint64_t sum = 0;
              for (const comm::CallStats& stats : world->stats()) sum += stats.bytes_sent;
              return sum;
            };
            const uint64_t before = bytes();
            const Tensor y = run_chain(holder.context, &tp_comm, choice);
            sent[static_cast<size_t>(world->rank())] = bytes() - before;
            EXPECT_LT(autograd::distance(y.span<double>(), one.span<double>()), 1e-13) << choice.text();
          },
          kRings);
      uint64_t all = 0;
      for (uint64_t bytes : sent) all += bytes;
      EXPECT_EQ(all, static_cast<uint64_t>(choice.elements_sent()) * 8) << t << ": " << choice.text();
    }
}

TEST(Chain, SortsShardingsByCommunication) {
  const auto plans = all_chains(kWidths, kColumns, 4);
  EXPECT_EQ(plans.size(), 27u);
  EXPECT_EQ(plans[0].text(), "whole whole whole");
  EXPECT_EQ(plans[0].elements_sent(), 0);
  const auto divided = std::find_if(plans.begin(), plans.end(), [](const auto& p) { return p.shards_all(); });
  // Without replicated matrices the cheapest choice sends d₁ + 2d₃ = 60. The other chains whose first matrix is sharded
  // by outputs send d₂ + 2d₃ = 84, d₁ + d₂ + d₃ = 108 or 2d₂ + d₃ = 132.
  EXPECT_EQ(divided->text(), "out out in");
  EXPECT_EQ(divided->weights_held() * 4, 24 * 36 + 36 * 60 + 60 * 12);
}

}  // namespace
}  // namespace esp::parallel
