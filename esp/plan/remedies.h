// A policy that does not fit, and the smallest changes to it that do: one axis or switch at a time, then two.
#pragma once

#include <string>
#include <vector>

#include "esp/plan/estimate.h"

namespace esp::plan {

struct Remedy {
  std::string change;  // "recompute = full"
  Policy policy;
  double memory_bytes = 0, step_s = 0;
};
// The fastest first, `most` of them; none where nothing of the kind helps.
std::vector<Remedy> remedies(const Shape& shape, const Cluster& cluster, const Policy& policy, size_t most = 3);

}  // namespace esp::plan
