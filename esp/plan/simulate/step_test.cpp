#include "esp/plan/simulate/step.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "esp/parallel/pp/simulate.h"

namespace esp::plan {
namespace {

StepInput pipeline(const char* schedule, int stages, int chunks, int micro_batches, const StageTime& stage) {
  StepInput input;
  input.schedule = parallel::make_schedule(schedule, {stages, chunks, micro_batches});
  const double v = chunks;
  input.pieces.assign(static_cast<size_t>(stages * chunks),
                      {stage.forward / v, stage.backward / v, stage.weights / v, 0});
  input.stages.resize(static_cast<size_t>(stages));
  return input;
}

struct Case {
  const char* schedule;
  int chunks;
};
constexpr Case kCases[] = {{"none", 1},        {"gpipe", 1},       {"1f1b", 1},
                           {"interleaved", 2}, {"interleaved", 4}, {"zb-h1", 1}};

// All times are powers of two, so the simulated times must equal the theoretical ones bit for bit.
TEST(StepSimulation, StepTimeMatchesTheoreticalMakespan) {
  for (const Case& one : kCases)
    for (const int stages : {2, 4, 8})
      for (const int micro_batches : {8, 16}) {
        const StageTime stage{4, 4, 4, 0};
        const StepInput input = pipeline(one.schedule, stages, one.chunks, micro_batches, stage);
        const double theory = parallel::schedule_row(one.schedule)
                                  .makespan(input.schedule.shape, {stage.forward, stage.backward, stage.weights});
        const StepSimulation step = simulate_step(input);
        EXPECT_EQ(step.step_s, theory) << one.schedule << " " << stages << " " << micro_batches;
        EXPECT_EQ(step.compute_s, micro_batches * 12);
        EXPECT_NEAR(step.bubble, theory / (micro_batches * 12) - 1, 1e-12);
      }
}

// Compares with the pipeline simulator of esp/parallel, which shares no code with this one. Stages are unequal and
// messages take time.
TEST(StepSimulation, MatchesPipelineSimulatorOnUnequalStages) {
  for (const Case& one : kCases) {
    StepInput input = pipeline(one.schedule, 4, one.chunks, 8, {4, 4, 4, 0});
    parallel::PipelineCosts costs;
    for (size_t i = 0; i < input.pieces.size(); ++i) {
      const double more = 1 + 0.25 * static_cast<double>(i * 7 % 5);
      input.pieces[i].forward *= more;
      input.pieces[i].backward *= 2 * more;
      costs.virtual_stages.push_back({input.pieces[i].forward, input.pieces[i].backward, input.pieces[i].weights});
    }
    input.boundary = {0.5, 0, false};
    costs.transfers.assign(4, 0.5);
    EXPECT_NEAR(simulate_step(input).step_s, parallel::simulate(input.schedule, costs).makespan, 1e-9) << one.schedule;
  }
}

TEST(StepSimulation, PeakMemoryMatchesLiveMicroBatches) {
  StepInput input = pipeline("1f1b", 4, 1, 8, {1, 1, 1, 0});
  for (StageInput& stage : input.stages) stage.held_bytes = 100, stage.activation_bytes = 10;
  const StepSimulation step = simulate_step(input);
  for (const DeviceUse& device : step.devices) EXPECT_EQ(device.peak_bytes, 100 + 10 * (4 - device.stage));
}

// The last backward takes 4 s and completes four gradient buckets, each reduced in 1 s. Three reductions end during
// backward; the last one is exposed.
TEST(StepSimulation, OverlapsGradientReductionWithLastBackward) {
  StepInput input = pipeline("1f1b", 1, 1, 2, {2, 2, 2, 0});
  input.num_replicas = 2;
  input.stages[0].sums.assign(4, {1, 0, false});
  input.stages[0].update_s = 0.5;
  EXPECT_EQ(simulate_step(input).step_s, 12 + 1 + 0.5);
  EXPECT_EQ(simulate_step(input).exposed_s, 1);
  input.overlap_sums = false;
  EXPECT_EQ(simulate_step(input).step_s, 12 + 4 + 0.5);
  // If the reductions take longer than backward, the link is busy from the first bucket to the last.
  input.overlap_sums = true;
  input.stages[0].sums.assign(4, {3, 0, false});
  EXPECT_EQ(simulate_step(input).step_s, 2 + 4 + 2 + 1 + 4 * 3 + 0.5);
}

TEST(StepSimulation, OffloadsStatesBeforeTheUpdate) {
  StepInput input = pipeline("1f1b", 2, 1, 4, {1, 1, 1, 0});
  const double without = simulate_step(input).step_s;
  for (StageInput& stage : input.stages) stage.offload_s = 3, stage.update_s = 1;
  const StepSimulation step = simulate_step(input);
  EXPECT_EQ(step.step_s, without + 4);
  EXPECT_EQ(step.devices[0].offload_s, 3);
}

TEST(StepSimulation, GathersWeightsDuringTheFirstForward) {
  StepInput input = pipeline("1f1b", 1, 1, 2, {4, 2, 2, 0});
  input.stages[0].gathers.assign(4, {0.5, 0, false});
  EXPECT_EQ(simulate_step(input).step_s, 16 + 0.5);
  input.stages[0].gathers.assign(4, {2, 0, false});
  EXPECT_EQ(simulate_step(input).step_s, 8 + 1 + 4 + 8);
}

// Gradient reduction and pipeline messages share one port and delay each other.
TEST(StepSimulation, SharesPortBetweenGradientReductionAndMessages) {
  StepInput input = pipeline("1f1b", 2, 1, 4, {1, 1, 1, 0});
  input.num_replicas = 2;
  input.across_bandwidth = 10;
  input.boundary = {0, 5, true};
  const double alone = simulate_step(input).step_s;
  for (StageInput& stage : input.stages) stage.sums.assign(1, {0, 1, true});
  // The sum of stage 1 delays its last message by 0.1 s; the sum of stage 0 adds 0.1 s at the end.
  EXPECT_NEAR(simulate_step(input).step_s, alone + 0.2, 1e-9);
  for (StageInput& stage : input.stages) stage.sums.assign(50, {0, 5, true});
  const double both = simulate_step(input).step_s;
  EXPECT_GT(both, alone + 23);  // the sums take 25 s; the last backward hides little of it
}

TEST(StepSimulation, SlowReplicaDelaysStepAndEqualReplicasAreSimulatedOnce) {
  StepInput input = pipeline("1f1b", 2, 1, 4, {1, 1, 1, 0});
  input.num_replicas = 64;
  for (StageInput& stage : input.stages) stage.sums.assign(2, {0.25, 0, true});
  const StepSimulation even = simulate_step(input);
  EXPECT_EQ(even.devices.size(), 2u);
  EXPECT_EQ(even.devices[0].num_folded, 64);
  input.slowdown.assign(64, {1, 1});
  EXPECT_EQ(simulate_step(input).step_s, even.step_s);
  input.slowdown[17] = {1, 2};
  const StepSimulation slow = simulate_step(input);
  EXPECT_EQ(slow.devices.size(), 4u);
  // each of the four micro-batches takes 3 s longer; the bubble absorbs a part of that
  EXPECT_GT(slow.step_s, even.step_s + 4 * 2);
  double most_waiting = 0;
  for (const DeviceUse& device : slow.devices)
    if (device.num_folded == 63) most_waiting = std::max(most_waiting, device.after_s);
  EXPECT_GT(most_waiting, 8);
}

// Two stages of two ranks each share two cores.
TEST(StepSimulation, DevicesShareCoresOfOneMachine) {
  StepInput input = pipeline("1f1b", 2, 1, 4, {1, 1, 1, 0});
  const double apart = simulate_step(input).step_s;
  input.cores = 2;
  EXPECT_NEAR(simulate_step(input).step_s, apart, 1e-9);
  input.ranks_of_device = 2;
  EXPECT_NEAR(simulate_step(input).step_s, 2 * 12,
              1e-9);  // a rank that waits leaves its core to others, so no core is idle
}

TEST(StepSimulation, TraceContainsEveryAction) {
  Json trace;
  simulate_step(pipeline("1f1b", 2, 1, 3, {1, 1, 1, 0}), &trace);
  int spans = 0;
  for (const Json& event : trace.at("traceEvents")) spans += event.at("ph") == "X" ? 1 : 0;
  EXPECT_EQ(spans, 2 * 6);
}

}  // namespace
}  // namespace esp::plan
