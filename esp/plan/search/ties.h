// Ties: layouts that the planner cannot distinguish from the best, because their predicted value is within its
// prediction error.
#pragma once

#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/result.h"

namespace esp::plan {

// Relative, of the objective: step_error of the best layout for times and costs, memory_error for memory.
double tie_error(const PlanProblem& problem, const RankedChoice& best);

// Whether `one` is within `error` of the best. The best itself is: a tie has at least two members.
bool is_tie(const RankedChoice& best, const RankedChoice& one, double error);

// The order of layouts within a tie: `better` of result.h, as text.
inline constexpr const char* kTieBreak = "by predicted value, then less memory, then the order of the axes' values";

}  // namespace esp::plan
