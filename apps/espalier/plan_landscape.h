// Scatter plot of a search: step time and memory of every estimated policy, with the Pareto front and the best policy.
#pragma once

#include <string>

#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/result.h"

namespace esp::app {

// The plot as SVG. The tooltip of a point shows its policy.
std::string landscape_svg(const plan::PlanProblem& problem, const plan::SearchResult& result);

// A page with the plot, the best policies and, if given, the explanation.
std::string landscape_page(const plan::PlanProblem& problem, const plan::SearchResult& result,
                           const std::string& explanation);

}  // namespace esp::app
