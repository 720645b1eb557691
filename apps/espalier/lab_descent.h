// Gradient descent with compressed gradients and error feedback, between real ranks (threads of this process). It uses
// no optimizer but x ← x − γ·exchange(g_i), so results can be compared directly with theory.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "esp/sync/compress/aggregation.h"

namespace esp::app {

struct DescentProblem {
  int nodes = 0;
  std::vector<double> start, minimiser;
  std::function<void(int node, int64_t step, std::span<const double> x, std::span<double> g)> gradient;
};
// Three nodes with f_i = ⟨a_i, x⟩² + ¼‖x‖², whose largest coordinates all point away from the minimum.
DescentProblem spread_problem();
DescentProblem quadratic_problem(int nodes, int64_t dim, double heterogeneity, double noise);

struct DescentCase {
  std::string name, compress, feedback;
};

struct Descent {
  DescentCase spec;
  sync::AggregationMethod method = sync::AggregationMethod::gather;
  std::vector<double> error;  // ‖x − x*‖² / d before the first step and after each step
  // bytes sent per step by the busiest rank: measured, and by the formula
  double bytes_per_step = 0, formula_bytes = 0;
};
Descent descend(const DescentProblem& problem, const DescentCase& spec, double lr, int64_t steps);

}  // namespace esp::app
