#include "esp/plan/search/nearest_miss.h"

namespace esp::plan {
namespace {

// Range of the values of an axis that may need the least memory. Recompute and offload: the last value, which saves
// most memory. Micro-batch: the smallest. Division: equal. All other axes: all values.
std::pair<size_t, size_t> range_of(const PlanProblem& problem, size_t axis) {
  const size_t n = problem.axes()[axis].values.size();
  switch (static_cast<PlanAxis>(axis)) {
    case PlanAxis::micro_batch:
      return {0, 1};
    case PlanAxis::recompute:
    case PlanAxis::offload:
      return {n - 1, n};
    case PlanAxis::division:
      return {0, 1};
    default:
      return {0, n};
  }
}

void walk(const PlanProblem& problem, Choice& choice, size_t axis, NearestMiss& best) {
  if (axis == problem.num_axes()) {
    const double bytes = problem.choice_memory(choice).memory_bytes;
    if (bytes < best.memory_bytes) best = {true, choice, bytes};
    return;
  }
  const auto [first, last] = range_of(problem, axis);
  for (size_t value = first; value < last; ++value) {
    choice[axis] = static_cast<uint8_t>(value);
    if (problem.allowed(choice, axis + 1)) walk(problem, choice, axis + 1, best);
  }
  choice[axis] = 0;
}

}  // namespace

NearestMiss nearest_miss(const PlanProblem& problem) {
  NearestMiss best;
  Choice choice{};
  walk(problem, choice, 0, best);
  return best;
}

}  // namespace esp::plan
