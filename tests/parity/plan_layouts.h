// Layouts for which the planner computes memory and traffic exactly. Each layout includes the planner's description of
// its model and policy.
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

plan::Policy make_policy(const train::RunConfig& config, int ranks);

// The decoder layouts of the layout matrix without experts, and more layouts with other precisions, recomputation and
// ZeRO stages.
std::vector<PlannedLayout> planned_layouts();

}  // namespace esp::parity
