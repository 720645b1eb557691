#include "esp/sync/ps/virtual_time.h"

#include <gtest/gtest.h>

#include <numeric>

namespace esp::sync {
namespace {

const std::vector<PsLayerCost> kThreeLayers = {{1, 1, 0.5, 0.5}, {1, 1, 0.5, 0.5}, {1, 1, 2, 2}};

TEST(PushSchedule, PriorityOrderTakesEightTimeUnitsAndFifoOrderTakesTen) {
  PushPlan plan;
  plan.by_priority = false;
  EXPECT_DOUBLE_EQ(simulate_pushes(kThreeLayers, plan).time, 10);
  plan.by_priority = true;
  const PushResult run = simulate_pushes(kThreeLayers, plan);
  EXPECT_DOUBLE_EQ(run.time, 8);
  EXPECT_EQ(run.forward_begins, (std::vector<double>{4, 5, 7}));
}

TEST(PushSchedule, WholeLayerPartitionCannotBePreempted) {
  PushPlan plan;
  plan.partition = 4;  // layer 3 uses the link from time 1 to 5; after that layers 1 and 2 are sent without waiting
  EXPECT_DOUBLE_EQ(simulate_pushes(kThreeLayers, plan).time, 9);
}

TEST(PushSchedule, ExcessCreditAddsQueueingDelay) {
  PushPlan plan;
  plan.credit = 4;  // the credit lets all of layer 3 go on the link before layer 2 is ready
  EXPECT_DOUBLE_EQ(simulate_pushes(kThreeLayers, plan).time, 10);
}

TEST(PushSchedule, DuplexTakesTheLongerDirection) {
  const std::vector<PsLayerCost> one = {{0, 0, 64, 64}};
  PushPlan plan;
  EXPECT_DOUBLE_EQ(simulate_pushes(one, plan).time, 128);
  plan.duplex = true;
  // the longer direction, plus one partition that fills the pipeline
  EXPECT_DOUBLE_EQ(simulate_pushes(one, plan).time, 65);
  plan.partition = 64;
  EXPECT_DOUBLE_EQ(simulate_pushes(one, plan).time, 128);
}

TEST(PushSchedule, EveryPartitionIsSentOnceAndOneAtATime) {
  for (const bool by_priority : {false, true}) {
    PushPlan plan;
    plan.by_priority = by_priority;
    const PushResult run = simulate_pushes(kThreeLayers, plan);
    EXPECT_EQ(run.transfers.size(), 6u);
    for (size_t i = 1; i < run.transfers.size(); ++i) EXPECT_GE(run.transfers[i].begin, run.transfers[i - 1].end);
  }
}

// A step of one worker takes four times as long as a step of the others.
TEST(WorkerPaces, SlowestWorkerSetsThePaceOnlyInLockstep) {
  const std::vector<double> times = {1, 1, 1, 4};
  const auto total = [&](ClockMode pace, int64_t bound) {
    const ClockResult run = simulate_clocks(times, 100, pace, bound);
    return std::accumulate(run.steps.begin(), run.steps.end(), int64_t{0});
  };
  EXPECT_EQ(total(ClockMode::sync, 0), 100);
  EXPECT_EQ(total(ClockMode::async, 0), 325);
  EXPECT_EQ(total(ClockMode::ssp, 0), total(ClockMode::sync, 0));
  EXPECT_GE(total(ClockMode::async, 0), 400 * 3 / 4);  // at least (N − 1)/N of the throughput of four fast workers
}

TEST(WorkerPaces, ClocksStayWithinTheBound) {
  for (const int64_t bound : {0, 1, 3, 10}) {
    const ClockResult run = simulate_clocks({1, 1.5, 1, 7}, 200, ClockMode::ssp, bound);
    EXPECT_EQ(run.largest_gap, bound);
    for (const int64_t steps : run.steps) EXPECT_LE(steps - run.steps[3], bound + 1);
  }
  EXPECT_GT(simulate_clocks({1, 1.5, 1, 7}, 200, ClockMode::async, 0).largest_gap, 100);
}

TEST(WorkerPaces, StalenessOfEqualWorkersIsTheNumberOfOtherWorkers) {
  const ClockResult run = simulate_clocks({1, 1, 1, 1}, 50, ClockMode::async, 0);
  EXPECT_EQ(run.staleness.rbegin()->first, 3);
  EXPECT_GT(run.staleness.at(3), 190);
  EXPECT_EQ(simulate_clocks({1, 1, 1, 1}, 50, ClockMode::sync, 0).staleness, (std::map<int64_t, int64_t>{{0, 200}}));
}

TEST(DelayedDescent, IsStableExactlyBelowTheThreshold) {
  const double thresholds[] = {2, 1, 0.618, 0.445};
  for (int delay = 0; delay < 4; ++delay) {
    EXPECT_NEAR(largest_stable(delay), thresholds[delay], 5e-4);
    EXPECT_LT(delayed_descent(0.98 * largest_stable(delay), delay, 20000), 1e-3) << delay;
    EXPECT_GT(delayed_descent(1.02 * largest_stable(delay), delay, 20000), 1e3) << delay;
  }
}

TEST(PushPullSeconds, OneServerIsTheBottleneckAndSeveralServersShareTheLoad) {
  EXPECT_DOUBLE_EQ(push_pull_seconds(1e9, 8, 1, 1e9, true), 8);
  EXPECT_DOUBLE_EQ(push_pull_seconds(1e9, 8, 4, 1e9, true), 2);
  EXPECT_DOUBLE_EQ(push_pull_seconds(1e9, 8, 8, 1e9, true), 1);
  // limited by the worker's link
  EXPECT_DOUBLE_EQ(push_pull_seconds(1e9, 8, 16, 1e9, true), 1);
  EXPECT_DOUBLE_EQ(push_pull_seconds(1e9, 8, 4, 1e9, false), 4);
}

}  // namespace
}  // namespace esp::sync
