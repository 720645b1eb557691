// Tests the schedules of the table: their actions, their validity, and that simulated and theoretical times are equal.
#include "esp/parallel/pp/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/simulate.h"
#include "esp/parallel/pp/steps.h"
#include "esp/parallel/pp/validate.h"

namespace esp::parallel {
namespace {

using testing::HasSubstr;

// Calls `look` for every schedule of the table and every shape it supports with P in 1..8 and m in 1..16.
template <typename Look>
void for_every_schedule(const Look& look) {
  for (const ScheduleRow& row : schedules())
    for (int P = 1; P <= 8; ++P)
      for (int m = 1; m <= 16; ++m)
        for (int v = 1; v <= (row.chunked ? 4 : 1); ++v) {
          if (row.chunked && m % P != 0) continue;
          SCOPED_TRACE(testing::Message() << row.name << " P=" << P << " v=" << v << " m=" << m);
          look(row, make_schedule(row.name, {P, v, m}));
          if (testing::Test::HasFailure()) return;
        }
}

std::string text_of(const PipelineSchedule& schedule, int stage) {
  std::string text;
  for (const PipelineAction& action : schedule.stages[static_cast<size_t>(stage)])
    text += (text.empty() ? "" : " ") + name_of(action, schedule.shape.chunks);
  return text;
}

std::string refused(std::string_view name, const ScheduleShape& shape) {
  try {
    make_schedule(name, shape);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PipelineSchedule, MatchesPublishedSchedules) {
  EXPECT_EQ(text_of(make_schedule("none", {2, 1, 2}), 0), "F0 B0 F1 B1");
  EXPECT_EQ(text_of(make_schedule("gpipe", {2, 1, 3}), 1), "F0 F1 F2 B0 B1 B2");
  const PipelineSchedule one = make_schedule("1f1b", {4, 1, 5});
  EXPECT_EQ(text_of(one, 0), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4");
  EXPECT_EQ(text_of(one, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  EXPECT_EQ(text_of(make_schedule("interleaved", {2, 2, 2}), 1), "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0");
  const PipelineSchedule zb = make_schedule("zb-h1", {3, 1, 4});
  EXPECT_EQ(text_of(zb, 0), "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  EXPECT_EQ(text_of(zb, 2), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
}

TEST(PipelineSchedule, EveryScheduleIsValid) {
  for_every_schedule([](const ScheduleRow&, const PipelineSchedule& schedule) { EXPECT_NO_THROW(validate(schedule)); });
}

TEST(PipelineSchedule, ForwardScheduleIsValidForEveryShape) {
  for (int P = 1; P <= 8; ++P)
    for (int v = 1; v <= 4; ++v)
      for (int m = 1; m <= 17; ++m) {
        const PipelineSchedule schedule = forward_schedule({P, v, m});
        EXPECT_NO_THROW(validate(schedule)) << P << " " << v << " " << m;
        EXPECT_EQ(peak_live(schedule, 0), 1);
      }
}

TEST(PipelineSchedule, SimulatedTimeMatchesTheory) {
  for (const StageTimes& times : {StageTimes{1, 1, 1}, StageTimes{1, 2, 1}, StageTimes{3, 2, 5}, StageTimes{2, 4, 1}})
    for_every_schedule([&](const ScheduleRow& row, const PipelineSchedule& schedule) {
      const Timeline timeline = simulate(schedule, equal_costs(schedule.shape, times));
      EXPECT_NEAR(timeline.makespan, row.makespan(schedule.shape, times), 1e-9);
    });
}

TEST(PipelineSchedule, LiveActivationsMatchTheory) {
  for_every_schedule([](const ScheduleRow& row, const PipelineSchedule& schedule) {
    for (int stage = 0; stage < schedule.shape.stages; ++stage) {
      const int live = peak_live(schedule, stage);
      if (row.backward == Backward::split)
        EXPECT_LE(live, row.live(schedule.shape, stage));
      else
        EXPECT_EQ(live, row.live(schedule.shape, stage));
    }
  });
}

TEST(PipelineSchedule, BubblesMatchTextbookRatios) {
  for_every_schedule([](const ScheduleRow& row, const PipelineSchedule& schedule) {
    const auto [P, v, m] = schedule.shape;
    const Timeline timeline = simulate(schedule, equal_costs(schedule.shape, {1, 1, 1}));
    if (row.name == "zb-h1" && m < P) return;
    const double extra = row.name == "none" ? P - 1.0 : row.name == "zb-h1" ? (P - 1) / (3.0 * m) : (P - 1.0) / (v * m);
    EXPECT_NEAR(timeline.bubble_of_ideal(), extra, 1e-12);
    EXPECT_NEAR(timeline.bubble_of_total(), extra / (1 + extra), 1e-12);
  });
}

TEST(PipelineSchedule, ExposedTransferTimeIsBetweenOneAndAllMicroBatches) {
  for_every_schedule([](const ScheduleRow& row, const PipelineSchedule& schedule) {
    const auto [P, v, m] = schedule.shape;
    for (double transfer : {0.01, 0.3, 2.0}) {
      const double one = 2 * transfer * (P * v - 1);  // one micro-batch: each boundary in both directions
      const double exposed = exposed_transfer(schedule, equal_costs(schedule.shape, {1, 1, 1}, transfer));
      if (P == 1) {
        EXPECT_EQ(exposed, 0);
      } else if (row.name == "none") {
        EXPECT_NEAR(exposed, m * one, 1e-9);
      } else {
        // With several chunks the inputs have often arrived early, so only the transfers of one pass over the stages
        // must be exposed.
        EXPECT_GE(exposed, (row.chunked ? 2 * transfer * (P - 1) : one) - 1e-9);
        EXPECT_LE(exposed, m * one + 1e-9);
      }
    }
  });
}

TEST(PipelineSchedule, UnequalStagesHaveMoreIdleTime) {
  const PipelineSchedule schedule = make_schedule("1f1b", {4, 1, 8});
  PipelineCosts costs = equal_costs(schedule.shape, {1, 1, 1});
  const double even = simulate(schedule, costs).bubble_of_ideal();
  costs.virtual_stages[2] = {2, 2, 2};
  costs.virtual_stages[0] = {0.5, 0.5, 0.5};
  const Timeline uneven = simulate(schedule, costs);
  EXPECT_GT(uneven.bubble_of_ideal(), even);
  EXPECT_DOUBLE_EQ(uneven.stages[2].busy, 8 * 6.0);
  EXPECT_DOUBLE_EQ(uneven.stages[2].busy + uneven.stages[2].idle, uneven.makespan);
}

TEST(PipelineSchedule, PlanStartsReceiveOneActionAhead) {
  const StagePlan plan = plan_of(make_schedule("1f1b", {2, 1, 2}), 0);
  std::string text;
  for (const StageStep& step : plan.steps)
    text += std::string(step.kind == StepKind::receive ? " <"
                        : step.kind == StepKind::send  ? " >"
                                                       : " ") +
            name_of(step.action, 1);
  EXPECT_EQ(text, " F0 >F0 <B0 F1 >F1 <B1 B0 B1");
}

TEST(PipelineSchedule, LastStageSendsChunkOutputToFirstStage) {
  const ScheduleShape shape{3, 2, 3};
  EXPECT_EQ(destination_of(shape, 2, {ActionKind::forward, 0, 1}), (StageChunk{0, 1}));
  EXPECT_EQ(source_of(shape, 0, {ActionKind::forward, 1, 1}), (StageChunk{2, 0}));
  EXPECT_EQ(destination_of(shape, 0, {ActionKind::backward, 1, 1}), (StageChunk{2, 0}));
  EXPECT_EQ(source_of(shape, 0, {ActionKind::forward, 0, 1}), std::nullopt);
  EXPECT_EQ(destination_of(shape, 2, {ActionKind::forward, 1, 1}), std::nullopt);
}

TEST(PipelineSchedule, ShapeErrorSuggestsValidShapes) {
  EXPECT_THAT(refused("interleaved", {4, 2, 6}), HasSubstr("Use 4 or 8 or schedule 1f1b"));
  EXPECT_THAT(refused("interleaved", {4, 2, 3}), HasSubstr("Use 4 or schedule 1f1b"));
  EXPECT_THAT(refused("1f1b", {4, 2, 8}), HasSubstr("interleaved supports several"));
  EXPECT_THAT(refused("gpipe", {4, 1, 0}), HasSubstr("at least 1"));
  EXPECT_THAT(refused("1f2b", {4, 1, 4}), HasSubstr("did you mean \"1f1b\""));
}

}  // namespace
}  // namespace esp::parallel
