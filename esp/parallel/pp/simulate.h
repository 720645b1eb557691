// Simulates a pipeline step: start and end of every action, and the idle time (bubble).
//
// A stage runs its actions in order, each as soon as its inputs have arrived. A channel (one direction of one edge)
// carries one message at a time. The schedule must be valid (validate.h).
#pragma once

#include <vector>

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

struct PipelineCosts {
  std::vector<StageTimes> virtual_stages;  // times per micro-batch, by virtual stage c·P + k
  // Time of one message on each edge, in either direction. Edge k is from stage k to the next; the last edge leads to
  // the first stage. Empty: transfers take no time.
  std::vector<double> transfers;
};

// Costs for equal stages and equal edges. A stage has v chunks; each chunk takes 1/v of the time of the stage.
PipelineCosts equal_costs(const ScheduleShape& shape, const StageTimes& stage, double transfer = 0);

struct TimedAction {
  PipelineAction action;
  double begin = 0, end = 0;
};

struct StageTimeline {
  std::vector<TimedAction> actions;
  double busy = 0, idle = 0;  // idle: the makespan minus busy
  int peak_live = 0;          // maximum number of live chunk activations
};

struct Timeline {
  double makespan = 0;
  std::vector<StageTimeline> stages;
  // Idle time of all stages, divided by their compute time (of_ideal) or by their total time (of_total).
  double bubble_of_ideal() const;
  double bubble_of_total() const;
};

Timeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs);

// Returns the step time minus the step time if transfers took no time.
double exposed_transfer(const PipelineSchedule& schedule, const PipelineCosts& costs);

}  // namespace esp::parallel
