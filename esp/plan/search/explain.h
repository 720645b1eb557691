// Explains a search result: the parts of its step, for each axis the best alternative and its cost, the sensitivity of
// the time to each figure of the cluster, and the gain of more memory or a larger batch.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct CostShare {
  std::string what;
  double seconds = 0, part = 0;  // part: fraction of the step
};

// The best other value of one axis, with the others kept (or, where a rule requires, changed as little as possible).
struct Alternative {
  std::string axis, from, to, policy;
  double change = 0;  // of the objective, relative; meaningless unless it fits
  bool fits = true;
  std::string why;  // why it does not fit
};

// d ln(step time) / d ln(figure): −0.3 means that one percent more saves 0.3 percent.
struct Sensitivity {
  std::string figure;
  double elasticity = 0;
};

struct Explanation {
  std::string policy;
  std::vector<CostShare> time, memory;  // parts above 0.001, largest first
  double memory_bytes = 0, capacity = 0;
  std::vector<std::string> binds;  // largest first, as text
  std::vector<Alternative> alternatives;
  std::vector<Sensitivity> sensitivities;
  std::vector<std::string> warnings;
};

Explanation explain(const PlanProblem& problem, const Choice& choice);
std::string to_text(const Explanation& explanation);
Json to_json(const Explanation& explanation);

}  // namespace esp::plan
