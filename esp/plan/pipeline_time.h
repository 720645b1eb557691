// Step time of a pipeline in closed form, from the times of its pieces. Exact if all stages are equal and transfers
// take no time. Otherwise: work of the slowest stage plus fill and drain.
#pragma once

#include <vector>

#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {

struct PipelineTime {
  double total = 0;    // seconds of all micro-batches
  double busy = 0;     // compute seconds of the slowest stage
  double bubble = 0;   // idle seconds of the slowest stage
  double sending = 0;  // seconds of exposed messages of the slowest stage
  int slowest = 0;
};
PipelineTime pipeline_time(const Policy& policy, const PipelinePieces& pieces, const std::vector<StageTime>& times);

}  // namespace esp::plan
