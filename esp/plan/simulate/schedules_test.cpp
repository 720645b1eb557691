#include "esp/plan/simulate/schedules.h"

#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/steps.h"
#include "esp/plan/simulate/step.h"

namespace esp::plan {
namespace {

using parallel::ActionKind;

constexpr const char* kSchedules[] = {"zb-2p", "zb-v", "v-half", "v-min", "dualpipe"};

Policy pipeline(const char* schedule, int stages, int micro_batches) {
  Policy policy;
  policy.schedule = schedule;
  policy.pp = stages;
  policy.global_batch = micro_batches;
  return policy;
}

// Input with equal stages, each with the given times of forward, input gradient and weight gradient.
StepInput input_of(const Policy& policy, const StageTime& stage) {
  StepInput input;
  StepSchedule actions = step_schedule(policy);
  input.schedule = std::move(actions.schedule);
  input.placement = actions.placement;
  input.synchronised = actions.synchronised;
  const int parts = input.placement == PiecePlacement::folded ? 2 : 1;
  input.pieces.assign(static_cast<size_t>(policy.pp * parts),
                      {stage.forward / parts, stage.backward / parts, stage.weights / parts, 0});
  input.stages.resize(static_cast<size_t>(policy.pp));
  return input;
}

TEST(StepSchedules, ContainEveryActionOnceAndInOrder) {
  for (const char* name : kSchedules)
    for (const int stages : {2, 4, 6, 8})
      for (const int micro_batches : {1, 3, 8, 24}) {
        const StepSchedule step = step_schedule(pipeline(name, stages, micro_batches));
        const int per_stage = step.placement == PiecePlacement::folded ? 2 : 1;
        for (const auto& actions : step.schedule.stages) {
          EXPECT_EQ(actions.size(), static_cast<size_t>(3 * per_stage * micro_batches)) << name << " " << stages;
          std::map<std::pair<ActionKind, int>, int> next;
          // [chunk, micro-batch]: number of its actions (forward, backward, weights) done so far
          std::map<std::tuple<int, int>, int> done;
          for (const auto& action : actions) {
            EXPECT_EQ(action.micro_batch, (next[{action.kind, action.chunk}]++)) << name;
            EXPECT_EQ((done[{action.chunk, action.micro_batch}]++), static_cast<int>(action.kind)) << name;
          }
        }
      }
}

TEST(StepSchedules, MicroBatchPassesEveryModelChunkForwardAndBackward) {
  for (const char* name : {"zb-v", "dualpipe"}) {
    const StepSchedule step = step_schedule(pipeline(name, 4, 8));
    for (const int chunk : {0, 1}) {
      if (step.placement == PiecePlacement::folded && chunk == 1) continue;
      parallel::StageChunk at{chunk == 0 ? 0 : 3, chunk};
      std::vector<int> pieces = {piece_at(step.placement, step.schedule.shape, at.stage, at.chunk)};
      while (const auto to =
                 consumer_of(step.placement, step.schedule.shape, at.stage, {ActionKind::forward, at.chunk, 0})) {
        EXPECT_EQ(consumer_of(step.placement, step.schedule.shape, to->stage, {ActionKind::backward, to->chunk, 0}),
                  at);
        at = *to;
        pieces.push_back(piece_at(step.placement, step.schedule.shape, at.stage, at.chunk));
      }
      for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(pieces[i], static_cast<int>(i)) << name;
      EXPECT_EQ(pieces.size(), step.placement == PiecePlacement::folded ? 8u : 4u);
    }
  }
}

// If forward, input gradient and weight gradient take equal time, no stage is idle once the pipeline is full.
TEST(StepSchedules, ZeroBubbleSchedulesHaveNoBubble) {
  for (const char* name : {"zb-2p", "zb-v"})
    for (const int stages : {2, 4, 8}) {
      const int m = 3 * stages;
      const StepSimulation step = simulate_step(input_of(pipeline(name, stages, m), {2, 2, 2, 0}));
      EXPECT_NEAR(step.step_s, 6 * m, 1e-9) << name << " " << stages;
    }
}

TEST(StepSchedules, BubbleMatchesFormulas) {
  const StageTime stage{4, 5, 3, 0};
  for (const int stages : {4, 8}) {
    const int m = 4 * stages;
    const double busy = m * 12.0, plain = simulate_step(input_of(pipeline("1f1b", stages, m), stage)).step_s - busy;
    const auto bubble = [&](const char* name) {
      return simulate_step(input_of(pipeline(name, stages, m), stage)).step_s - busy;
    };
    EXPECT_NEAR(bubble("zb-2p"), (stages - 1) * (4 + 5 - 2 * 3), 1e-9);
    EXPECT_LT(bubble("zb-v"), 0.35 * plain);
    EXPECT_NEAR(bubble("dualpipe"), (stages / 2 - 1) * (4 + 2 * 5 - 3), 0.25 * plain);
    EXPECT_LT(bubble("dualpipe"), 0.7 * plain);
  }
}

// All time units of a block are equal, so shorter actions wait for the longest one.
TEST(StepSchedules, VHalfAndVMinReduceBubbleOf1F1B) {
  const StageTime stage{4, 4, 4, 0};
  for (const int stages : {4, 8}) {
    const int m = 4 * stages;
    const double busy = m * 12.0;
    const auto bubble = [&](const char* name) {
      return simulate_step(input_of(pipeline(name, stages, m), stage)).step_s - busy;
    };
    EXPECT_LE(bubble("v-half"), 0.65 * bubble("1f1b"));
    EXPECT_LE(bubble("v-min"), 0.8 * bubble("1f1b"));
    EXPECT_GE(bubble("v-min"), bubble("v-half"));
  }
}

TEST(StepSchedules, PeakActivationsMatchDocumentedCounts) {
  const auto most = [](const char* name, int stages, int m) {
    const StepSchedule step = step_schedule(pipeline(name, stages, m));
    int live = 0;
    for (int k = 0; k < stages; ++k) live = std::max(live, parallel::peak_live(step.schedule, k));
    return live;
  };
  const int P = 8, m = 32;
  EXPECT_EQ(most("zb-2p", P, m), 2 * P - 1);
  EXPECT_EQ(most("zb-v", P, m), 2 * P);  // counted in chunks; a chunk is half of a stage
  EXPECT_LE(most("v-half", P, m), P + 3);
  EXPECT_LE(most("v-min", P, m), 2 * P / 3 + 4);
  EXPECT_LE(most("dualpipe", P, m), P + 1);
}

TEST(StepSchedules, RejectUnsupportedShapes) {
  EXPECT_THROW(step_schedule(pipeline("dualpipe", 5, 20)), UsageError);
  EXPECT_THROW(step_schedule(pipeline("zb-x", 4, 20)), UsageError);
}

}  // namespace
}  // namespace esp::plan
