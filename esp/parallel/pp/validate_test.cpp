#include "esp/parallel/pp/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "esp/base/error.h"

namespace esp::parallel {
namespace {

using testing::HasSubstr;

std::string fault_of(const PipelineSchedule& schedule) {
  try {
    validate(schedule);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

constexpr auto F = ActionKind::forward, B = ActionKind::backward, W = ActionKind::weights;

// 1F1B for two stages and two micro-batches: F0 F1 B0 B1 | F0 B0 F1 B1.
PipelineSchedule sound() {
  PipelineSchedule schedule = make_schedule("1f1b", {2, 1, 2});
  EXPECT_EQ(fault_of(schedule), "");
  return schedule;
}

TEST(PipelineValidate, ErrorNamesMissingAction) {
  PipelineSchedule schedule = sound();
  schedule.stages[1].pop_back();
  EXPECT_THAT(fault_of(schedule), HasSubstr("stage 1: B1 is missing from its 3 actions"));
  schedule = make_schedule("zb-h1", {2, 1, 2});
  std::erase(schedule.stages[0], PipelineAction{W, 0, 1});
  EXPECT_THAT(fault_of(schedule), HasSubstr("stage 0: W1 is missing"));
}

TEST(PipelineValidate, ErrorNamesDuplicateAction) {
  PipelineSchedule schedule = sound();
  schedule.stages[0].push_back({F, 0, 1});
  EXPECT_THAT(fault_of(schedule), HasSubstr("stage 0, action 4 (F1): duplicate of action 1"));
}

TEST(PipelineValidate, ErrorNamesActionOutsideShape) {
  PipelineSchedule schedule = sound();
  schedule.stages[0][0].micro_batch = 2;
  EXPECT_THAT(fault_of(schedule), HasSubstr("stage 0, action 0 (F2): got micro-batch 2; expected less than 2"));
  schedule = sound();
  schedule.stages[0][0].chunk = 1;
  EXPECT_THAT(fault_of(schedule), HasSubstr("got chunk 1; expected less than 1"));
  schedule = sound();
  schedule.stages[1].push_back({W, 0, 0});
  EXPECT_THAT(fault_of(schedule), HasSubstr("does not split the backward"));
  schedule = sound();
  schedule.backward = Backward::none;
  EXPECT_THAT(fault_of(schedule), HasSubstr("has no backward"));
  schedule = sound();
  schedule.stages.pop_back();
  EXPECT_THAT(fault_of(schedule), HasSubstr("got the actions of 1 stages; expected 2"));
}

TEST(PipelineValidate, RequiresBackwardAfterForward) {
  PipelineSchedule schedule = sound();
  std::swap(schedule.stages[1][0], schedule.stages[1][1]);
  EXPECT_THAT(fault_of(schedule), HasSubstr("stage 1, action 0 (B0) comes before F0 (action 1)"));
  schedule = make_schedule("zb-h1", {2, 1, 2});
  auto& actions = schedule.stages[0];
  std::swap(*std::find(actions.begin(), actions.end(), PipelineAction{B, 0, 1}),
            *std::find(actions.begin(), actions.end(), PipelineAction{W, 0, 1}));
  EXPECT_THAT(fault_of(schedule), HasSubstr("(W1) comes before B1"));
}

TEST(PipelineValidate, RequiresAscendingMicroBatches) {
  PipelineSchedule schedule = make_schedule("gpipe", {1, 1, 2});
  std::swap(schedule.stages[0][2], schedule.stages[0][3]);
  EXPECT_THAT(fault_of(schedule),
              HasSubstr("stage 0, action 2 (B1) comes before B0 (action 3); micro-batches must be in"));
}

// The last stage needs micro-batch 1 before it returns gradient 0; the first needs gradient 0 before it sends 1.
TEST(PipelineValidate, FindsDeadlockBetweenStages) {
  PipelineSchedule schedule = sound();
  schedule.stages[0] = {{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}};
  schedule.stages[1] = {{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}};
  EXPECT_THAT(fault_of(schedule),
              HasSubstr("stage 0, action 1 (B0) waits forever for B0 of stage 1, which waits for this stage"));
}

TEST(PipelineValidate, FindsDifferentMessageOrderOfNeighbours) {
  PipelineSchedule schedule = make_schedule("interleaved", {2, 2, 2});
  auto& actions = schedule.stages[1];
  std::swap(*std::find(actions.begin(), actions.end(), PipelineAction{F, 0, 1}),
            *std::find(actions.begin(), actions.end(), PipelineAction{F, 1, 0}));
  EXPECT_THAT(fault_of(schedule),
              HasSubstr("stage 1 expects the input of F0.1 as message 1 from stage 0, which sends the input "
                        "of F1.0"));
}

// The first stage runs each chunk over all micro-batches: it would have to send four messages before it receives one.
TEST(PipelineValidate, FindsChannelsThatNeedBuffering) {
  PipelineSchedule schedule = forward_schedule({2, 2, 6});
  for (auto& actions : schedule.stages)
    std::stable_sort(actions.begin(), actions.end(),
                     [](const PipelineAction& a, const PipelineAction& b) { return a.chunk < b.chunk; });
  EXPECT_THAT(fault_of(schedule), HasSubstr("waits forever to send its result to stage"));
}

}  // namespace
}  // namespace esp::parallel
