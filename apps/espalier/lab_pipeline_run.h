// Runs a pipeline schedule over a toy model, with one rank (a thread of this process) per stage. Records the start and
// end of each action, memory, bytes sent, and the gradients.
//
// An action computes and then waits until its nominal duration is over. Without this wait, actions would compete for
// cores if there are more stages than cores, and the picture would be distorted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "esp/parallel/pp/schedule.h"
#include "esp/parallel/pp/simulate.h"

namespace esp::app {

struct PipelineRun {
  parallel::Timeline timeline;    // times in ms, of the second of two steps
  std::vector<int> peak_live;     // per stage: largest number of micro-batches in flight
  std::vector<double> waited_ms;  // per stage: time spent waiting for adjacent stages
  uint64_t boundary_bytes = 0;    // bytes of one step: both directions, summed over all stage boundaries
  uint64_t message_bytes = 0;     // bytes of the activations of one micro-batch at one boundary
  std::map<std::pair<int, int>, std::vector<std::byte>> gradients;  // keyed by model unit and parameter
};

// Every chunk is an equal part of the model. `unit_ms` is the duration of one action of a chunk: forward, input
// gradient, or weight gradient.
PipelineRun run_pipeline(const parallel::PipelineSchedule& schedule, int num_units, double unit_ms);

}  // namespace esp::app
