// Simulates a pipeline step: start and end of every action, and the idle time (bubble).
//
// A stage runs its actions in order, each as soon as its inputs have arrived. A channel (one direction of one edge)
// carries one message at a time. The schedule must be valid (validate.h).
#pragma once

#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

struct PipelineCosts {
  std::vector<StageTimes> pieces;  // per micro-batch, by piece c·P + k
  // Time of one message over the edge from stage k to the next (the last edge leads to the first stage), in either
  // direction. Empty: free.
  std::vector<double> transfers;
};

// Equal stages, with v chunks of 1/v each, and equal edges.
PipelineCosts equal_costs(const ScheduleShape& shape, const StageTimes& stage, double transfer = 0);

struct TimedAction {
  PipelineAction action;
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
  // Idle time of all stages, relative to their compute time and to their total time.
  double bubble_of_ideal() const;
  double bubble_of_total() const;
};

Timeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs);

// Step time minus the step time with free transfers.
double exposed_transfer(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace esp::parallel
