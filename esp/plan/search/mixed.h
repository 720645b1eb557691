// Mixed (heterogeneous) clusters: one pipeline over several kinds of GPUs. The planner selects the pool of each stage
// and its number of layers.
//
// All stages have the same width: tp · dp devices of one kind. So a pool of n devices holds n / width stages. The
// planner tries every width, tp, micro-batch size, recomputation, and ZeRO stages 0 and 1. For each, the closed form
// gives the layer times on each kind, and division.h assigns the layers (exact for its objective). Gradient reduction
// and update take the time of the slowest pool.
#pragma once

#include <optional>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

struct MixedPlan {
  Policy policy;                   // policy.stage_layers is the division of the layers
  std::vector<int> pool_of_stage;  // index of each stage's pool
  std::vector<Memory> stages;
  double step_s = 0, bubble_free_s = 0;  // step_s: predicted; bubble_free_s: without idle devices
};

// `pools`: one cluster per kind of device. nullopt: no plan fits. UsageError if there are no pools, or if no stage
// width divides all pools and the batch.
std::optional<MixedPlan> plan_mixed(const ModelShape& shape, const std::vector<Cluster>& pools, const Policy& base,
                                    const std::vector<int64_t>& micro_batches);

}  // namespace esp::plan
