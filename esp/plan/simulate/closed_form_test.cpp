// Compares the closed form with the event simulation for policies with equal stages.
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "esp/model/model.h"
#include "esp/plan/catalog.h"
#include "esp/plan/estimate.h"
#include "esp/plan/simulate/step.h"

namespace esp::plan {
namespace {

// A model with small embedding tables, so that all stages take nearly the same time.
ModelShape even_shape() {
  ModelShape shape = shape_of(model::preset("gpt3-13b").config, "even");
  shape.layers = 48;
  shape.vocab = 1024;
  return shape;
}

struct Case {
  int tp, pp, dp, interleave, zero;
  const char* schedule;
  int64_t global_batch;
};

TEST(ClosedForm, MatchesSimulationWithinTwoPercentForEqualStages) {
  const Cluster& cluster = built_in_catalog().cluster("selene");
  for (const Case& c :
       {Case{8, 1, 1, 1, 0, "1f1b", 16}, Case{8, 4, 1, 1, 0, "1f1b", 64}, Case{8, 4, 1, 1, 0, "gpipe", 64},
        Case{8, 4, 1, 2, 0, "interleaved", 64}, Case{8, 4, 1, 1, 0, "zb-h1", 64}, Case{8, 8, 1, 1, 0, "1f1b", 32},
        Case{8, 1, 8, 1, 0, "1f1b", 128}, Case{8, 4, 8, 1, 0, "1f1b", 256}, Case{8, 4, 8, 1, 1, "1f1b", 256},
        Case{8, 4, 16, 2, 1, "interleaved", 512}}) {
    Policy policy;
    policy.tp = c.tp, policy.pp = c.pp, policy.dp = c.dp;
    policy.schedule = c.schedule;
    policy.interleave = c.interleave;
    policy.zero = c.zero;
    policy.global_batch = c.global_batch;
    policy.software = "megatron-core";
    const double closed = estimate(even_shape(), cluster, policy).step_s;
    const double events = simulate_step(step_input(even_shape(), cluster, policy)).step_s;
    EXPECT_NEAR(events / closed, 1, 0.02) << fmt::format("tp {} pp {} dp {} {} v {} zero {}: {} s, events {} s", c.tp,
                                                         c.pp, c.dp, c.schedule, c.interleave, c.zero, closed, events);
  }
}

TEST(ClosedForm, MemoryMatchesSimulatedPeakOfWorstStage) {
  const Cluster& cluster = built_in_catalog().cluster("selene");
  Policy policy;
  policy.tp = 8, policy.pp = 4;
  policy.global_batch = 32;
  policy.software = "megatron-core";
  double most = 0;
  for (const DeviceUse& use : simulate_step(step_input(even_shape(), cluster, policy)).devices)
    most = std::max(most, use.peak_bytes);
  EXPECT_NEAR(most, memory_of(even_shape(), cluster, policy).total(), 1e-6 * most);
}

}  // namespace
}  // namespace esp::plan
