// What one stage really does: its actions with the receives and sends that follow from them.
//
// A receive is started one action before the one that needs it, so that the transfer runs while the stage computes; a
// send is started when its action is done. Each edge between neighbours (and, with several chunks, from the last stage
// round to the first) carries activations on one channel and gradients on another, and a channel keeps its order: the
// receives of a channel are in the order of its sends (validate.h sees to it). A stage that is its own neighbour sends
// nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

enum class StepKind : uint8_t { receive, compute, send };

struct Step {
  StepKind kind = StepKind::compute;
  Action action;  // receive: the one that needs it; send: the one that made it
  int peer = -1;  // stage at the other end
  bool operator==(const Step&) const = default;
};

struct StagePlan {
  ScheduleShape shape;
  int stage = 0;
  Backward backward = Backward::whole;
  std::vector<Step> steps;
};

// The edge a message goes along: edge k is that from stage k to the next (the last one's to the first), and gradients
// go along it backwards.
inline int edge_of(ActionKind kind, int from, int to) {
  return kind == ActionKind::forward ? from : to;
}

StagePlan plan_of(const Schedule& schedule, int stage);

// The most (chunk, micro-batch) activations the stage holds at once: from F until B, or until W where it is split.
int peak_live(const Schedule& schedule, int stage);

}  // namespace esp::parallel
