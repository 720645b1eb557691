// One pipeline over processors of several kinds: which stages stand on which, and how many layers each takes.
//
// Every stage is as wide as the others (tp · dp processors of one kind), so a pool of n processors holds n / width
// stages. For every width, tp, micro-batch, recomputation and ZeRO stage the layers' times on each kind come from the
// closed form, and division.h places them, exactly for its objective; copies' sums and the update are the slowest
// pool's.
#pragma once

#include <optional>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

struct MixedPlan {
  Policy policy;                   // stage_layers says the division
  std::vector<int> pool_of_stage;  // index into the pools
  std::vector<Memory> stages;
  double step_s = 0, bubble_free_s = 0;  // the second: what the processors' speeds together would take
};

// Pools are clusters whose size is how many processors they give. None: nothing fits. UsageError: no pools, or none of
// the widths divides them.
std::optional<MixedPlan> plan_mixed(const Shape& shape, const std::vector<Cluster>& pools, const Policy& base,
                                    const std::vector<int64_t>& micro_batches);

}  // namespace esp::plan
