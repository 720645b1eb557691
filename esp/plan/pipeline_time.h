// Step time of a pipeline in closed form, from the times of its pieces: exact for equal stages and free transfers,
// otherwise the slowest stage's work plus fill and drain.
#pragma once

#include <vector>

#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {

struct PipelineTime {
  double total = 0;    // of all micro-batches
  double busy = 0;     // of the slowest stage
  double bubble = 0;   // idle time of the slowest stage
  double sending = 0;  // exposed messages of the slowest stage
  int slowest = 0;
};
PipelineTime pipeline_time(const Policy& policy, const Pieces& pieces, const std::vector<StageTime>& times);

}  // namespace esp::plan
