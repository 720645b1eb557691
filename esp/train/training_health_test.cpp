#include "esp/train/training_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace esp::train {
namespace {

using testing::HasSubstr;

TEST(TrainingHealth, AcceptsAFewSkippedSteps) {
  TrainingHealth health;
  for (int step = 1; step <= 100; ++step) health.step(step, 2.0, step % 10 == 0);
  EXPECT_EQ(health.problem(), "");
}

TEST(TrainingHealth, FailsWhenMostStepsWereSkipped) {
  TrainingHealth health;
  for (int step = 1; step <= 30; ++step) health.step(step, 5.0, step > 2);
  EXPECT_EQ(health.problem(), "28 of 30 steps were skipped, the first at step 3, because gradients are not finite");
  EXPECT_FALSE(health.should_abort());
}

TEST(TrainingHealth, FailsWhenALongRunSkipsItsLastSteps) {
  TrainingHealth health;
  for (int step = 1; step <= 1012; ++step) health.step(step, 5.0, step > 1000);
  EXPECT_THAT(health.problem(), HasSubstr("12 of the last 16 steps"));
  for (int step = 1013; step <= 1020; ++step) health.step(step, 5.0, false);
  EXPECT_EQ(health.problem(), "");
}

TEST(TrainingHealth, FailsWhenTheLastThreeStepsWereSkipped) {
  TrainingHealth health;
  for (int step = 1; step <= 12; ++step) health.step(step, 5.0, false);
  for (int step = 13; step <= 14; ++step) health.step(step, 5.0, true);
  health.step(15, 5.0, true, true);
  EXPECT_EQ(health.problem(), "");
  health.step(16, 5.0, true);
  EXPECT_EQ(health.problem(), "the last 3 steps were skipped, because gradients are not finite");
  EXPECT_FALSE(health.should_abort());
  health.step(17, 5.0, false);
  EXPECT_EQ(health.problem(), "");
}

TEST(TrainingHealth, FailsWhileTheLossIsNotFinite) {
  TrainingHealth health;
  for (int step = 1; step <= 20; ++step) health.step(step, 2.0, false);
  health.step(21, std::nan(""), false);
  health.step(22, INFINITY, false);
  EXPECT_EQ(health.problem(), "loss or values are not finite since step 21");
  health.step(23, 2.0, false);
  EXPECT_EQ(health.problem(), "");
  health.values_not_finite(23);
  EXPECT_THAT(health.problem(), HasSubstr("since step 23"));
}

TEST(TrainingHealth, IgnoresSkippedStepsWhileLossScaleAdapts) {
  TrainingHealth health;
  for (int step = 1; step <= 6; ++step) health.step(step, 2.0, true, true);
  health.step(7, 2.0, false);
  EXPECT_EQ(health.problem(), "");
}

TEST(TrainingHealth, AbortsAfterFiftyConsecutiveSkippedSteps) {
  TrainingHealth health;
  for (int step = 1; step <= 100; ++step) health.step(step, 2.0, false);
  for (int step = 101; step <= 149; ++step) health.step(step, 2.0, true);
  EXPECT_FALSE(health.should_abort());
  health.step(150, 2.0, true);
  EXPECT_TRUE(health.should_abort());
  EXPECT_THAT(health.problem(), HasSubstr("50 steps in a row"));
}

}  // namespace
}  // namespace esp::train
