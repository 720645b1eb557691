// A pipeline schedule run by as many ranks (threads of this process) as it has stages, over a toy model: begin and end
// of each action, memory, bytes sent, and the gradients.
//
// An action computes and then waits until its nominal duration is over: with more stages than cores, actions would
// otherwise compete for cores and distort the picture.
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
  parallel::Timeline timeline;  // in ms, of the last of two steps
  std::vector<int> peak_live;
  std::vector<double> waited_ms;                                    // for neighbours, by stage
  uint64_t boundary_bytes = 0;                                      // over all boundaries, both directions, one step
  uint64_t message_bytes = 0;                                       // activations of one micro-batch
  std::map<std::pair<int, int>, std::vector<std::byte>> gradients;  // by unit and part
};

// Every piece takes an equal part; `unit_ms` is the duration of one stage's forward, input gradients and weight
// gradients each.
PipelineRun run_pipeline(const parallel::PipelineSchedule& schedule, int num_units, double unit_ms);

}  // namespace esp::app
