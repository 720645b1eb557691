// Suggestions for a policy that does not fit: the smallest changes that make it fit, one axis or switch at a time, then
// two.
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
// The fastest first, at most `most`; empty where no such change is enough.
std::vector<Suggestion> suggestions(const ModelShape& shape, const Cluster& cluster, const Policy& policy,
                                    size_t most = 3);

}  // namespace esp::plan
