// The choice with the least memory, for the error message of a search in which no choice fits.
#pragma once

#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct NearestMiss {
  bool found = false;  // false: no choice satisfies the rules
  Choice choice{};
  double memory_bytes = kNever;
};
// The choice with the least memory among those that satisfy the rules.
NearestMiss nearest_miss(const PlanProblem& problem);

}  // namespace esp::plan
