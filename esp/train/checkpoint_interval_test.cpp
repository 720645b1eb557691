#include "esp/train/checkpoint_interval.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace esp::train {
namespace {

constexpr CheckpointInterval::Options kOptions = {.min_s = 1, .max_s = 60, .share = 0.01, .expected_s = 0.05};

struct Outcome {
  std::vector<double> at;  // time of each save, in seconds since the start
  double cost = 0, longest = 0;
};

// Simulates a run in virtual time. step_s(t) is the length of a step and cost_s(t) the cost of a save at time t, in
// seconds.
Outcome run(double duration, const std::function<double(double)>& step_s, const std::function<double(double)>& cost_s) {
  CheckpointInterval interval(kOptions, 0);
  Outcome outcome;
  double now = 0, last = 0, step = 0;
  while (now < duration) {
    const bool due = interval.due_after_step(now, step);
    step = step_s(now);
    now += step;
    if (!due) continue;
    interval.begin(now);
    outcome.longest = std::max(outcome.longest, now - last);
    last = now;
    const double cost = cost_s(now);
    outcome.at.push_back(now);
    outcome.cost += cost;
    now += cost;
    interval.set_total_cost(outcome.cost);
  }
  return outcome;
}

const auto constant = [](double value) { return [value](double) { return value; }; };

TEST(CheckpointInterval, CostStaysBelowShareOfRunTimeWhenMaxIntervalAllows) {
  for (const double cost : {1e-4, 0.003, 0.05, 0.2, 0.5}) {
    const Outcome outcome = run(3600, constant(0.02), constant(cost));
    EXPECT_LE(outcome.cost, 0.0101 * 3600) << cost;
    EXPECT_LE(outcome.longest, 60.1) << cost;
    EXPECT_GE(outcome.at.size(), 59u) << cost;
  }
}

TEST(CheckpointInterval, StaysBelowMaxIntervalWhenCostIsHigh) {
  const Outcome outcome = run(3600, constant(0.02), constant(3));
  EXPECT_LE(outcome.longest, 60.1);
  EXPECT_GE(outcome.at.size(), 59u);
}

// Saves are written in the background. The work since the start of the last complete save is at risk until the next one
// is complete.
TEST(CheckpointInterval, CountsSlowWriteAsTimeAtRisk) {
  for (const double write_s : {5.0, 20.0, 29.0}) {
    CheckpointInterval interval(kOptions, 0);
    interval.begin(10);
    interval.set_total_cost(write_s);
    double now = 10 + write_s;
    while (!interval.due_after_step(now, 0.02)) now += 0.02;
    EXPECT_LE(now + 0.02 + write_s, 10 + 60.1) << write_s;
  }
}

TEST(CheckpointInterval, SavesAtNextStepEndWhenStepsAreLong) {
  const Outcome outcome = run(3600, constant(25), constant(0.3));
  EXPECT_LE(outcome.longest, 75.1);
  EXPECT_EQ(run(3600, constant(90), constant(0.3)).at.size(), 39u);  // one save after every step but the first
}

TEST(CheckpointInterval, StaysAboveMinIntervalWhenCostIsTiny) {
  const Outcome outcome = run(60, constant(0.001), constant(1e-6));
  for (size_t i = 1; i < outcome.at.size(); ++i) EXPECT_GE(outcome.at[i] - outcome.at[i - 1], 0.998);
}

TEST(CheckpointInterval, SavesNothingWhenRunIsShort) {
  EXPECT_TRUE(run(4.9, constant(0.01), constant(0.05)).at.empty());
  EXPECT_FALSE(run(6, constant(0.01), constant(0.05)).at.empty());
}

TEST(CheckpointInterval, WaitsLongerAfterExpensiveFirstSave) {
  int made = 0;
  const Outcome outcome = run(600, constant(0.01), [&](double) { return made++ == 0 ? 0.5 : 0.01; });
  EXPECT_LE(outcome.cost, 0.0101 * 600);
  EXPECT_GE(outcome.at[1] - outcome.at[0], 45);
}

TEST(CheckpointInterval, AdaptsIntervalWhenCostChanges) {
  const Outcome outcome = run(2000, constant(0.01), [](double now) { return now < 1000 ? 0.4 : 0.02; });
  EXPECT_LE(outcome.cost, 0.0101 * 2000);
  EXPECT_LE(outcome.longest, 60.1);
}

TEST(CheckpointInterval, SavesOnTimeWhenStepsBecomeTwiceAsLong) {
  CheckpointInterval interval(kOptions, 0);
  interval.begin(60);
  interval.set_total_cost(0.3);
  double now = 60;
  int looks = 0;
  for (double step = 0.01; !interval.due_after_step(now, step); step = 0.02) {
    now += 0.02 * static_cast<double>(interval.steps_to_next_decision(now, step));
    ++looks;
  }
  EXPECT_LE(now, 90.1);  // a save that costs 0.3 s is due 30 s after t = 60 s, at a share of 1 %
  EXPECT_LE(looks, 15);
}

TEST(CheckpointInterval, ReportsWhenMaxIntervalMakesCostExceedShare) {
  CheckpointInterval interval(kOptions, 0);
  EXPECT_FALSE(interval.exceeds_share());
  interval.begin(60);
  interval.set_total_cost(2);
  EXPECT_FALSE(interval.exceeds_share());
  interval.begin(120);
  interval.set_total_cost(2.5);
  EXPECT_FALSE(interval.exceeds_share());
  interval.set_total_cost(2.7);
  EXPECT_TRUE(interval.exceeds_share());
}

}  // namespace
}  // namespace esp::train
