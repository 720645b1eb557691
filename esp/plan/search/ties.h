// Ties: layouts with a predicted value so near the best that the difference is within the planner's prediction error.
// The planner cannot tell which of them is fastest.
#pragma once

#include <string>
#include <vector>

#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/result.h"

namespace esp::plan {

// Relative prediction error of the objective. For times and costs: step_error of the best layout. For memory:
// kMemoryError.
double tie_error(const PlanProblem& problem, const RankedChoice& best);

// For each layout of result.top, whether it ties with the best one: the difference of their values is within the
// planner's error. The best layout itself is a member of the tie. All false if no other layout ties.
std::vector<bool> find_ties(const PlanProblem& problem, const SearchResult& result);
// A sentence about the ties of a search, such as "ties: 3 of the 10 listed layouts are within …".
std::string describe_ties(const PlanProblem& problem, const SearchResult& result);

// How layouts within a tie are ordered, as text for the user. See better() in result.h.
inline constexpr const char* kTieBreak = "by predicted value, then less memory, then the order of the axes' values";

}  // namespace esp::plan
