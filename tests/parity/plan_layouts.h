// The executed layouts that the planner's own rules can foretell, as the planner sees them.
#pragma once

#include <string>
#include <vector>

#include "esp/plan/policy.h"
#include "esp/plan/shape.h"
#include "esp/train/run_config.h"
#include "tests/parity/parallel_matrix.h"

namespace esp::parity {

struct PlannedLayout {
  std::string name;
  int ranks = 1;
  Overrides overrides;
  plan::ModelShape shape;
  plan::Policy policy;
  double bucket_mb = 25, first_bucket_mb = 1;
  int64_t prefetch = 1;
};

plan::Policy policy_of(const train::RunConfig& config, int ranks);

// Decoders without experts of the matrix of layouts, and the ways to keep, share and store that it leaves out.
std::vector<PlannedLayout> planned_layouts();

}  // namespace esp::parity
