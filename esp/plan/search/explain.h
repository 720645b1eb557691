// Explains the result of a search: the parts of its step; the best alternative on each axis and its cost; the
// sensitivity of the step time to each hardware figure; the gain from more memory or a larger batch.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct CostShare {
  std::string name;
  double amount = 0, fraction = 0;  // amount: seconds or bytes; fraction: of the whole step or the whole memory
};

// The best choice with another value of one axis. The other axes keep their values, or change as little as the rules
// require.
struct Alternative {
  std::string axis, from, to, policy;
  double change = 0;  // relative change of the objective; valid only if `fits`
  bool fits = true;
  std::string why;  // why the alternative does not fit
};

// elasticity = d ln(step time) / d ln(figure). −0.3: a figure that is 1 % higher makes the step 0.3 % shorter.
struct Sensitivity {
  std::string figure;
  double elasticity = 0;
};

struct Explanation {
  std::string policy;
  // parts of at least 0.1 %, largest first; `amount` is in seconds for time, in bytes for memory
  std::vector<CostShare> time, memory;
  double memory_bytes = 0, capacity = 0;
  std::vector<std::string> limits;  // texts that say what limits the speed, the largest limit first
  std::vector<Alternative> alternatives;
  std::vector<Sensitivity> sensitivities;
  std::vector<std::string> warnings;
};

Explanation explain(const PlanProblem& problem, const Choice& choice);
std::string to_text(const Explanation& explanation);
Json to_json(const Explanation& explanation);

}  // namespace esp::plan
