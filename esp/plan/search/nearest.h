// Where nothing fits: the choice closest to fitting.
#pragma once

#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct NearestMiss {
  bool any = false;  // whether any choice satisfies the rules
  Choice choice{};
  double memory_bytes = kNever;
};
// The choice of least memory, with memory-efficient values of the axes.
NearestMiss nearest_miss(const PlanProblem& problem);

}  // namespace esp::plan
