#include "esp/plan/search/ties.h"

#include <algorithm>

#include <fmt/format.h>

namespace esp::plan {

double tie_error(const PlanProblem& problem, const RankedChoice& best) {
  if (problem.objective().by_memory) return kMemoryError;
  return step_error(problem.shape(), problem.cluster_at(best.choice), problem.policy_at(best.choice));
}

std::vector<bool> find_ties(const PlanProblem& problem, const SearchResult& result) {
  const double limit = result.best().value * (1 + tie_error(problem, result.best()));
  std::vector<bool> ties;
  for (const RankedChoice& one : result.top) ties.push_back(one.value <= limit);
  if (std::count(ties.begin(), ties.end(), true) < 2) ties.assign(ties.size(), false);
  return ties;
}

std::string describe_ties(const PlanProblem& problem, const SearchResult& result) {
  const std::vector<bool> ties = find_ties(problem, result);
  const auto num_ties = std::count(ties.begin(), ties.end(), true);
  const std::string error = fmt::format("{:.3g} %", 100 * tie_error(problem, result.best()));
  if (ties.size() == 1) return "ties unknown: no other layout is listed (--top, --axis)";
  if (num_ties == 0)
    return fmt::format("no ties: all other listed layouts are slower by more than the planner's error of {}", error);
  return fmt::format("ties: {} of the {} listed layouts are within the planner's error of {} of the best; ordered {}",
                     num_ties, ties.size(), error, kTieBreak);
}

}  // namespace esp::plan
