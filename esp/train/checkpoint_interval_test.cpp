#include "esp/train/checkpoint_interval.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace esp::train {
namespace {

constexpr CheckpointInterval::Options kOptions = {.least_s = 1, .most_s = 60, .share = 0.01, .expected_s = 0.05};

struct Outcome {
  std::vector<double> at;  // seconds into the run
  double cost = 0, longest = 0;
};

// A run in virtual time: `step_s` and `cost_s` are functions of the time, in seconds.
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

TEST(CheckpointInterval, TakesAtMostItsShareWhenTheBoundAllows) {
  for (const double cost : {1e-4, 0.003, 0.05, 0.2, 0.5}) {
    const Outcome outcome = run(3600, constant(0.02), constant(cost));
    EXPECT_LE(outcome.cost, 0.0101 * 3600) << cost;
    EXPECT_LE(outcome.longest, 60.1) << cost;
    EXPECT_GE(outcome.at.size(), 59u) << cost;
  }
}

TEST(CheckpointInterval, KeepsTheBoundWhenTheCostIsHigh) {
  const Outcome outcome = run(3600, constant(0.02), constant(3));
  EXPECT_LE(outcome.longest, 63.1);  // while training stands still no work is at risk
  EXPECT_GE(outcome.at.size(), 56u);
}

TEST(CheckpointInterval, KeepsTheBoundWhenStepsAreLong) {
  const Outcome outcome = run(3600, constant(25), constant(0.3));
  EXPECT_LE(outcome.longest, 75.1);
  EXPECT_EQ(run(3600, constant(90), constant(0.3)).at.size(), 39u);  // after every step but the first
}

TEST(CheckpointInterval, NeverComesSoonerThanTheLeast) {
  const Outcome outcome = run(60, constant(0.001), constant(1e-6));
  for (size_t i = 1; i < outcome.at.size(); ++i) EXPECT_GE(outcome.at[i] - outcome.at[i - 1], 0.998);
}

TEST(CheckpointInterval, MakesNoneInAShortRun) {
  EXPECT_TRUE(run(4.9, constant(0.01), constant(0.05)).at.empty());
  EXPECT_FALSE(run(6, constant(0.01), constant(0.05)).at.empty());
}

TEST(CheckpointInterval, PaysOffAnExpensiveFirstOne) {
  int made = 0;
  const Outcome outcome = run(600, constant(0.01), [&](double) { return made++ == 0 ? 0.5 : 0.01; });
  EXPECT_LE(outcome.cost, 0.0101 * 600);
  EXPECT_GE(outcome.at[1] - outcome.at[0], 45);
}

TEST(CheckpointInterval, FollowsACostThatChanges) {
  const Outcome outcome = run(2000, constant(0.01), [](double now) { return now < 1000 ? 0.4 : 0.02; });
  EXPECT_LE(outcome.cost, 0.0101 * 2000);
  EXPECT_LE(outcome.longest, 60.1);
}

TEST(CheckpointInterval, MeetsOftenEnoughWhenStepsBecomeTwiceAsLong) {
  CheckpointInterval interval(kOptions, 0);
  interval.begin(60);
  interval.set_total_cost(0.3);
  double now = 60;
  int looks = 0;
  for (double step = 0.01; !interval.due_after_step(now, step); step = 0.02) {
    now += 0.02 * static_cast<double>(interval.steps_to_next_look(now, step));
    ++looks;
  }
  EXPECT_LE(now, 90.1);  // 0.3 s at 1 %
  EXPECT_LE(looks, 15);
}

TEST(CheckpointInterval, TellsWhenTheBoundCostsMoreThanTheShare) {
  CheckpointInterval interval(kOptions, 0);
  EXPECT_FALSE(interval.over_share());
  interval.begin(60);
  interval.set_total_cost(2);
  EXPECT_FALSE(interval.over_share());
  interval.begin(120);
  interval.set_total_cost(2.5);
  EXPECT_FALSE(interval.over_share());
  interval.set_total_cost(2.7);
  EXPECT_TRUE(interval.over_share());
}

}  // namespace
}  // namespace esp::train
