#include "esp/plan/search/mixed.h"

#include <numeric>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/plan/catalog.h"
#include "esp/plan/search/space.h"

namespace esp::plan {
namespace {

ModelShape model() {
  ModelShape s;
  s.name = "gpt";
  s.layers = 24;
  s.hidden = 2048;
  s.ffn = 8192;
  s.heads = s.kv_heads = 16;
  s.head_dim = 128;
  s.vocab = 51200;
  s.seq = 2048;
  return s;
}

Cluster pool(const char* name, int gpus) {
  return resize_cluster(built_in_catalog().cluster(name), gpus);
}

Policy batch(int64_t sequences) {
  Policy policy;
  policy.global_batch = sequences;
  policy.precision = "fp16";
  return policy;
}

int layers_on(const MixedPlan& plan, int pool) {
  int sum = 0;
  for (size_t k = 0; k < plan.pool_of_stage.size(); ++k)
    if (plan.pool_of_stage[k] == pool) sum += plan.policy.stage_layers[k];
  return sum;
}

TEST(MixedPlan, AssignsMoreLayersToFasterDevices) {
  const auto plan = plan_mixed(model(), {pool("dgx-a100", 4), pool("dgx-1", 4)}, batch(64), {1, 2, 4});
  ASSERT_TRUE(plan);
  EXPECT_EQ(std::accumulate(plan->policy.stage_layers.begin(), plan->policy.stage_layers.end(), 0), 24);
  EXPECT_GT(layers_on(*plan, 0), layers_on(*plan, 1));
  EXPECT_GT(layers_on(*plan, 1), 0);
  // The mixed plan is faster than the slower kind alone, but slower than both kinds without a bubble.
  const auto slow = plan_mixed(model(), {pool("dgx-1", 4)}, batch(64), {1, 2, 4});
  ASSERT_TRUE(slow);
  EXPECT_LT(plan->step_s, slow->step_s);
  EXPECT_GT(plan->step_s, plan->bubble_free_s);
}

TEST(MixedPlan, TwoPoolsOfOneKindAreNotFasterThanOnePool) {
  const auto one = plan_mixed(model(), {pool("dgx-a100", 8)}, batch(32), {1, 2});
  const auto two = plan_mixed(model(), {pool("dgx-a100", 4), pool("dgx-a100", 4)}, batch(32), {1, 2});
  ASSERT_TRUE(one && two);
  // A stage is at most as wide as the smallest pool. One pool of 8 also allows stages of 8, so its plan is at least as
  // fast.
  EXPECT_LE(one->step_s, two->step_s * (1 + 1e-9));
}

TEST(MixedPlan, RespectsTheMemoryOfEachPool) {
  ModelShape large = model();
  large.layers = 32;
  large.hidden = 4096;
  large.ffn = 16384;
  large.heads = large.kv_heads = 32;
  Cluster small = pool("dgx-a100", 4);
  small.processor.memory_bytes /= 3;
  const std::vector<Cluster> pools = {pool("dgx-a100", 4), small};
  const auto plan = plan_mixed(large, pools, batch(32), {1});
  ASSERT_TRUE(plan);
  for (size_t k = 0; k < plan->stages.size(); ++k)
    EXPECT_LE(plan->stages[k].total(), pools[static_cast<size_t>(plan->pool_of_stage[k])].processor.memory_bytes);
}

TEST(MixedPlan, RejectsBatchNotDivisibleByAnyStageSize) {
  EXPECT_THROW(plan_mixed(model(), {}, batch(8), {1}), UsageError);
  EXPECT_THROW(plan_mixed(model(), {pool("dgx-a100", 8)}, batch(8), {16}), UsageError);
}

}  // namespace
}  // namespace esp::plan
