// Problems of which everything is known: min over x of f(x) = (1/n) Σ f_i(x), where node i sees f_i only and its
// gradients with noise. For checking methods against theory, and for experiments of one's own.
//
//   quadratic  f_i(x) = ½ Σ_d h_id (x_d − c_id)²
//   logistic   f_i(x) = (1/m) Σ_s log(1 + exp(−b_s a_s·x)) + ½ λ ‖x‖², m examples of its own
//
// Heterogeneity moves the nodes' answers (and curvatures) apart: 0 gives all the same f_i. Noise has mean zero and
// E‖ξ‖² = σ²; it is a function of (seed, node, step), so that whoever computes a gradient gets the same. Immutable once
// made: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace esp::sync {

struct ProblemOptions {
  int nodes = 8;
  int64_t dim = 16;
  double heterogeneity = 0;                        // standard deviation of the nodes' centres, each coordinate
  double noise = 0;                                // σ
  double least_curvature = 1, most_curvature = 1;  // quadratic: h over the coordinates
  int64_t examples = 64;                           // logistic: of each node
  double decay = 0.1;                              // logistic: λ
  uint64_t seed = 1;
};

class Problem {
 public:
  Problem(int nodes, int64_t dim, double noise, uint64_t seed) : nodes_(nodes), dim_(dim), noise_(noise), seed_(seed) {}
  virtual ~Problem() = default;

  int nodes() const { return nodes_; }
  int64_t dim() const { return dim_; }
  double noise() const { return noise_; }                    // σ
  virtual double smoothness() const = 0;                     // L: no f_i bends more
  virtual const std::vector<double>& minimiser() const = 0;  // of f
  virtual double loss(int node, std::span<const double> x) const = 0;
  virtual void gradient(int node, std::span<const double> x, std::span<double> g) const = 0;

  double loss(std::span<const double> x) const;  // f
  void noisy_gradient(int node, int64_t step, std::span<const double> x, std::span<double> g) const;
  double squared_gradient(std::span<const double> x) const;  // ‖∇f(x)‖²
  double squared_distance(std::span<const double> x) const;  // ‖x − x*‖²

 private:
  const int nodes_;
  const int64_t dim_;
  const double noise_;
  const uint64_t seed_;
};

std::unique_ptr<Problem> make_quadratic(const ProblemOptions& options);
// One coordinate per node's list: curvatures and centres as given, [nodes][dim].
std::unique_ptr<Problem> make_quadratic(std::vector<std::vector<double>> curvatures,
                                        std::vector<std::vector<double>> centres, double noise = 0, uint64_t seed = 1);
std::unique_ptr<Problem> make_logistic(const ProblemOptions& options);

}  // namespace esp::sync
