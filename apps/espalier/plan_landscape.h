// The picture of a search: every policy that was estimated, its time against its memory, the front among them and the
// winner.
#pragma once

#include <string>

#include "esp/plan/search/plan_problem.h"
#include "esp/plan/search/result.h"

namespace esp::app {

// SVG; hovering over a point says its policy.
std::string landscape_svg(const plan::PlanProblem& problem, const plan::SearchResult& result);

// A page with the picture, the best few and, where there is one, the explanation's text.
std::string landscape_page(const plan::PlanProblem& problem, const plan::SearchResult& result,
                           const std::string& explanation);

}  // namespace esp::app
