// A pipeline step in virtual time: when every action of every stage runs, and what that leaves idle.
//
// A stage runs its actions in order, each as soon as what it needs has arrived. A channel (one direction of one edge)
// carries one message at a time. The schedule must be valid (validate.h).
#pragma once

#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

struct PipelineCosts {
  std::vector<StageTimes> pieces;  // of one micro-batch, by piece c·P + k
  // Of one message over the edge from stage k to the next (the last one's leads to the first), either direction. Empty:
  // free.
  std::vector<double> transfers;
};

// Stages that take equally long, v chunks a v-th each, and edges that do.
PipelineCosts equal_costs(const ScheduleShape& shape, const StageTimes& stage, double transfer = 0);

struct TimedAction {
  Action action;
  double begin = 0, end = 0;
};

struct StageTimeline {
  std::vector<TimedAction> actions;
  double busy = 0, idle = 0;  // idle: of the makespan
  int peak_live = 0;          // chunk activations held at once
};

struct Timeline {
  double makespan = 0;
  std::vector<StageTimeline> stages;
  // Idle time of all stages: divided by what they computed, and by their whole time.
  double bubble_of_ideal() const;
  double bubble_of_total() const;
};

Timeline simulate(const Schedule& schedule, const PipelineCosts& costs);

// How much longer the step takes than with free transfers.
double exposed_transfer(const Schedule& schedule, const PipelineCosts& costs);

}  // namespace esp::parallel
