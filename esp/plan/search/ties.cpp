#include "esp/plan/search/ties.h"

namespace esp::plan {

double tie_error(const PlanProblem& problem, const RankedChoice& best) {
  if (problem.objective().by_memory) return kMemoryError;
  return step_error(problem.shape(), problem.cluster_at(best.choice), problem.policy_at(best.choice));
}

bool is_tie(const RankedChoice& best, const RankedChoice& one, double error) {
  return one.value <= best.value * (1 + error);
}

}  // namespace esp::plan
