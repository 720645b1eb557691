// Steps of one stage: its actions with the receives and sends they imply.
//
// A receive starts one action before the action that needs it, so the transfer overlaps with computation; a send starts
// when its action is done. Each edge between neighbours (with several chunks also from the last stage to the first) has
// one channel for activations and one for gradients. A channel is FIFO: its receives are in the order of its sends
// (checked by validate.h). A stage that is its own neighbour sends nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

enum class StepKind : uint8_t { receive, compute, send };

struct StageStep {
  StepKind kind = StepKind::compute;
  PipelineAction action;  // receive: the action that needs the data; send: the action that produced it
  int peer = -1;          // the stage at the other end
  bool operator==(const StageStep&) const = default;
};

struct StagePlan {
  ScheduleShape shape;
  int stage = 0;
  Backward backward = Backward::whole;
  std::vector<StageStep> steps;
};

// The edge of a message. Edge k is from stage k to the next (the last one's to the first); gradients use it in the
// opposite direction.
inline int edge_of(ActionKind kind, int from, int to) {
  return kind == ActionKind::forward ? from : to;
}

StagePlan plan_of(const PipelineSchedule& schedule, int stage);

// Maximum number of live (chunk, micro-batch) activations of the stage: from F until B, or until W if backward is
// split.
int peak_live(const PipelineSchedule& schedule, int stage);

}  // namespace esp::parallel
