// Reference implementation for tests: n replicas of x in one thread, without strategies. Plain loops update and average
// them in the specified order. Distributed results must be bit-identical.
#pragma once

#include <cstring>
#include <vector>

#include "esp/kernel/optimizer_step.h"
#include "esp/sync/gossip/gossip_topology.h"
#include "esp/sync/problems/optimization_problem.h"

namespace esp::sync {

using Vector = std::vector<double>;

struct ReferenceReplicas {
  const OptimizationProblem& problem;
  double lr;
  std::vector<Vector> x, g;  // weights and gradients, one vector per replica

  ReferenceReplicas(const OptimizationProblem& of, int num_replicas, double rate)
      : problem(of), lr(rate), x(static_cast<size_t>(num_replicas), Vector(static_cast<size_t>(of.dim()))), g(x) {}

  void gradients(int64_t step) {
    for (size_t i = 0; i < x.size(); ++i) problem.noisy_gradient(static_cast<int>(i), step, x[i], g[i]);
  }
  // In each group of `group` consecutive replicas, replaces the gradients by their mean, added in replica order.
  void add_gradients(size_t group) {
    const std::vector<Vector> own = g;
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t d = 0; d < g[i].size(); ++d) {
        const size_t first = i / group * group;
        double sum = own[first][d] * (1.0 / static_cast<double>(group));
        for (size_t k = 1; k < group; ++k) sum += own[first + k][d] * (1.0 / static_cast<double>(group));
        g[i][d] = sum;
      }
  }
  void adapt() {
    for (size_t i = 0; i < x.size(); ++i) {
      kernel::StepBuffers buffers;
      buffers.master = x[i].data();
      buffers.grad = g[i].data();
      buffers.count = static_cast<int64_t>(x[i].size());
      buffers.grad_type = DType::f64;
      kernel::SgdStep step;
      step.lr = lr;
      step.momentum = 0;
      kernel::sgd_step(buffers, step, {});
    }
  }
  static std::vector<Vector> mixed(const MixingMatrix& mixing, const std::vector<Vector>& of) {
    std::vector<Vector> out = of;
    for (size_t i = 0; i < of.size(); ++i)
      for (size_t d = 0; d < of[i].size(); ++d) {
        double sum = 0;
        bool first = true;
        for (const NeighbourWeight& one : mixing[i]) {
          const double product = one.weight * of[static_cast<size_t>(one.from)][d];
          sum = first ? product : sum + product;
          first = false;
        }
        out[i][d] = sum;
      }
    return out;
  }
  void combine(const MixingMatrix& mixing) { x = mixed(mixing, x); }
  static Vector mean(const std::vector<Vector>& of) {
    Vector sum = of[0];
    for (size_t i = 1; i < of.size(); ++i)
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += of[i][d];
    for (double& one : sum) one *= 1.0 / static_cast<double>(of.size());
    return sum;
  }
  void average() { x.assign(x.size(), mean(x)); }
};

inline bool same_bits(const Vector& a, const Vector& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace esp::sync
