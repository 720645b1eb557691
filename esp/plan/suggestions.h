// Suggestions for a policy that does not fit: changes of one axis or switch that make it fit; if there are none,
// changes of two.
#pragma once

#include <string>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

struct Suggestion {
  std::string change;  // "recompute = full"
  Policy policy;
  double memory_bytes = 0, step_s = 0;
};
// At most `most` suggestions, the fastest first. Empty if no change of one or two axes is enough.
std::vector<Suggestion> suggestions(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                                    size_t most = 3);

}  // namespace esp::plan
