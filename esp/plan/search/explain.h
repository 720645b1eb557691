// Why a choice wins and what binds it: what its step is made of, for each axis the best it could be changed to and what
// that would cost, how its time answers to each figure of the cluster, and what more memory or a larger batch would
// bring.
#pragma once

#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/plan/search/plan_problem.h"

namespace esp::plan {

struct Share {
  std::string what;
  double seconds = 0, part = 0;  // of the step
};

// The best other value of one axis, the rest kept (or, where a rule wants it, changed as little as can be).
struct Alternative {
  std::string axis, from, to, policy;
  double change = 0;  // of the objective, relative; meaningless unless it fits
  bool fits = true;
  std::string why;  // where it does not
};

// d ln(step time) / d ln(figure): −0.3 means that one percent more of it saves 0.3 percent.
struct Sensitivity {
  std::string figure;
  double elasticity = 0;
};

struct Explanation {
  std::string policy;
  std::vector<Share> time, memory;  // parts above a thousandth, largest first
  double memory_bytes = 0, capacity = 0;
  std::vector<std::string> binds;  // largest first, in words
  std::vector<Alternative> alternatives;
  std::vector<Sensitivity> sensitivities;
  std::vector<std::string> warnings;
};

Explanation explain(const PlanProblem& problem, const Choice& choice);
std::string to_text(const Explanation& explanation);
Json to_json(const Explanation& explanation);

}  // namespace esp::plan
