// Mixed clusters: one pipeline over processors of several kinds; selects the pool of each stage and its number of
// layers.
//
// All stages have the same width (tp · dp processors of one kind), so a pool of n processors has n / width stages. For
// every width, tp, micro-batch, recomputation and ZeRO stage the layer times on each kind come from the closed form,
// and division.h assigns them, exactly for its objective; gradient sums and the update take the time of the slowest
// pool.
#pragma once

#include <optional>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

struct MixedPlan {
  Policy policy;                   // stage_layers contains the division
  std::vector<int> pool_of_stage;  // index into the pools
  std::vector<Memory> stages;
  double step_s = 0, bubble_free_s = 0;  // bubble_free_s: the time at the processors' combined speed
};

// Pools are clusters; their size is the number of processors. None: nothing fits. UsageError: no pools, or no width
// divides them.
std::optional<MixedPlan> plan_mixed(const ModelShape& shape, const std::vector<Cluster>& pools, const Policy& base,
                                    const std::vector<int64_t>& micro_batches);

}  // namespace esp::plan
