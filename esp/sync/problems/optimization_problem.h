// Optimization problems with known solutions: min over x of f(x) = (1/n) Σ f_i(x). Node i knows only f_i and gets noisy
// gradients of it. Used to check methods against theory, and for experiments.
//
//   quadratic  f_i(x) = ½ Σ_d h_id (x_d − c_id)²
//   logistic   f_i(x) = (1/m) Σ_s log(1 + exp(−b_s a_s·x)) + ½ λ ‖x‖², m examples per node
//
// Heterogeneity separates the minimisers (and curvatures) of the nodes; with heterogeneity 0 all nodes have the same
// f_i. Noise has mean zero and E‖ξ‖² = σ². Noise is a function of (seed, node, step), so a gradient does not depend on
// the rank that computes it. A problem is immutable; any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace esp::sync {

struct ProblemOptions {
  int nodes = 8;
  int64_t dim = 16;
  double heterogeneity = 0;                     // per coordinate, the standard deviation of the nodes' centres
  double noise = 0;                             // standard deviation σ of the gradient noise
  double min_curvature = 1, max_curvature = 1;  // quadratic: smallest and largest h_id
  int64_t examples = 64;                        // logistic: examples per node
  double decay = 0.1;                           // logistic: regularisation λ
  uint64_t seed = 1;
};

class OptimizationProblem {
 public:
  OptimizationProblem(int nodes, int64_t dim, double noise, uint64_t seed)
      : nodes_(nodes), dim_(dim), noise_(noise), seed_(seed) {}
  virtual ~OptimizationProblem() = default;

  int nodes() const { return nodes_; }
  int64_t dim() const { return dim_; }
  double noise() const { return noise_; }                    // standard deviation σ of the gradient noise
  virtual double smoothness() const = 0;                     // L: an upper bound of the curvature of every f_i
  virtual const std::vector<double>& minimiser() const = 0;  // minimiser of f
  virtual double loss(int node, std::span<const double> x) const = 0;
  virtual void gradient(int node, std::span<const double> x, std::span<double> g) const = 0;

  double loss(std::span<const double> x) const;  // f(x)
  void noisy_gradient(int node, int64_t step, std::span<const double> x, std::span<double> g) const;
  double squared_gradient(std::span<const double> x) const;  // ‖∇f(x)‖²
  double squared_distance(std::span<const double> x) const;  // ‖x − x*‖²

 private:
  const int nodes_;
  const int64_t dim_;
  const double noise_;
  const uint64_t seed_;
};

std::unique_ptr<OptimizationProblem> make_quadratic(const ProblemOptions& options);
// A quadratic problem with the given curvatures and centres, both [nodes][dim].
std::unique_ptr<OptimizationProblem> make_quadratic(std::vector<std::vector<double>> curvatures,
                                                    std::vector<std::vector<double>> centres, double noise = 0,
                                                    uint64_t seed = 1);
std::unique_ptr<OptimizationProblem> make_logistic(const ProblemOptions& options);

}  // namespace esp::sync
