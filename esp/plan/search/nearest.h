// Where nothing fits: what comes nearest to it.
#pragma once

#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct NearestMiss {
  bool any = false;  // whether any choice keeps the rules
  Choice choice{};
  double memory_bytes = kNever;
};
// The choice of least memory, sparing values of the axes that spare it throughout.
NearestMiss nearest_miss(const PlanProblem& problem);

}  // namespace esp::plan
