// A pipeline schedule run for real, by as many ranks (threads of this process) as it has stages, over a toy model: when
// each action began and ended, what was held and sent, and the gradients.
//
// An action computes and then waits until its share of the time is over, as on a processor so much slower: more stages
// than cores would otherwise take turns on the cores, and the picture would show that.
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
  uint64_t message_bytes = 0;                                       // one micro-batch's stream
  std::map<std::pair<int, int>, std::vector<std::byte>> gradients;  // by unit and part
};

// Every piece takes an equal part; `unit_ms` is what one stage's forward, input gradients and weight gradients take
// each.
PipelineRun run_pipeline(const parallel::Schedule& schedule, int num_units, double unit_ms);

}  // namespace esp::app
