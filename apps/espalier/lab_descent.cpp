#include "apps/espalier/lab_descent.h"

#include <algorithm>
#include <memory>

#include "esp/device/pool.h"
#include "esp/sync/compress/error_feedback.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::app {
namespace {

double distance(std::span<const double> x, const std::vector<double>& to) {
  double sum = 0;
  for (size_t d = 0; d < to.size(); ++d) sum += (x[d] - to[d]) * (x[d] - to[d]);
  return sum / static_cast<double>(to.size());
}

// Number of encoded vectors that a step sends. With "neolithic" feedback it is one per round, in both phases.
double rounds_of(const std::string& feedback) {
  const size_t colon = feedback.find(':');
  return feedback.starts_with("neolithic") ? (colon == std::string::npos ? 2 : std::stod(feedback.substr(colon + 1)))
                                           : 1;
}

}  // namespace

DescentProblem spread_problem() {
  return {3, {1, 1, 1}, {0, 0, 0}, [](int node, int64_t, std::span<const double> x, std::span<double> g) {
            double a[3] = {2, 2, 2}, dot = 0;
            a[node] = -3;
            for (size_t d = 0; d < 3; ++d) dot += a[d] * x[d];
            for (size_t d = 0; d < 3; ++d) g[d] = 2 * dot * a[d] + 0.5 * x[d];
          }};
}

DescentProblem quadratic_problem(int nodes, int64_t dim, double heterogeneity, double noise) {
  sync::ProblemOptions options;
  options.nodes = nodes;
  options.dim = dim;
  options.heterogeneity = heterogeneity;
  options.noise = noise;
  options.max_curvature = 3;
  const std::shared_ptr<const sync::OptimizationProblem> problem = sync::make_quadratic(options);
  return {nodes, std::vector<double>(static_cast<size_t>(dim)), problem->minimiser(),
          [problem](int node, int64_t step, std::span<const double> x, std::span<double> g) {
            problem->noisy_gradient(node, step, x, g);
          }};
}

Descent descend(const DescentProblem& problem, const DescentCase& spec, double lr, int64_t steps) {
  Descent run;
  run.spec = spec;
  const auto compressor = sync::make_compressor(spec.compress);
  const auto count = static_cast<int64_t>(problem.start.size());
  // EF and EF21 store the decoded values. An aggregation method that compresses a second time would change them, so
  // these feedbacks exclude such methods.
  const bool two_phase = sync::find_feedback(spec.feedback).two_phase;
  run.method = sync::cheapest_method(*compressor, count, DType::f64, problem.nodes, {two_phase});
  for (int rank = 0; rank < problem.nodes; ++rank)
    run.formula_bytes = std::max(
        run.formula_bytes,
        rounds_of(spec.feedback) *
            static_cast<double>(sync::bytes_sent(run.method, *compressor, count, DType::f64, problem.nodes, rank)));
  const bool inside = spec.feedback == "ef";  // with EF, the stored residual already contains the step size
  std::vector<double> sent(static_cast<size_t>(problem.nodes));
  sync::run_on_ranks(problem.nodes, [&](comm::Communicator* ranks) {
    device::MemoryAccount account;
    device::MemoryPool pool{account};
    sync::FeedbackSetup setup;
    setup.sum.ranks = ranks;
    setup.sum.context = {{}, &pool};
    setup.sum.compressor = compressor.get();
    setup.sum.count = count;
    setup.sum.dtype = DType::f64;
    setup.sum.seed = 1;
    setup.sum.ordered = true;
    setup.method = run.method;
    const auto feedback = sync::make_feedback(spec.feedback, setup);
    std::vector<double> x = problem.start, g(x.size()), out(x.size());
    const int me = ranks->rank();
    if (me == 0) run.error.push_back(distance(x, problem.minimiser));
    for (int64_t step = 0; step < steps; ++step) {
      problem.gradient(me, step, x, g);
      for (double& one : g) one *= inside ? lr : 1;
      feedback->exchange(out.data(), g.data());
      for (size_t d = 0; d < x.size(); ++d) x[d] -= (inside ? 1 : lr) * out[d];
      if (me == 0) run.error.push_back(distance(x, problem.minimiser));
    }
    for (const comm::CallStats& one : ranks->stats())
      sent[static_cast<size_t>(me)] += static_cast<double>(one.bytes_sent);
  });
  run.bytes_per_step = *std::max_element(sent.begin(), sent.end()) / static_cast<double>(steps);
  return run;
}

}  // namespace esp::app
