// What ranks must equal to the bit, in one thread and without strategies: n copies of x, updated and averaged by plain
// loops in the order that is declared. For tests.
#pragma once

#include <cstring>
#include <vector>

#include "esp/kernel/optimizer_step.h"
#include "esp/sync/gossip/topology.h"
#include "esp/sync/problems/problem.h"

namespace esp::sync {

using Vector = std::vector<double>;

struct OneProcess {
  const Problem& problem;
  double lr;
  std::vector<Vector> x, g;  // by copy

  OneProcess(const Problem& of, int copies, double rate)
      : problem(of), lr(rate), x(static_cast<size_t>(copies), Vector(static_cast<size_t>(of.dim()))), g(x) {}

  void gradients(int64_t step) {
    for (size_t i = 0; i < x.size(); ++i) problem.noisy_gradient(static_cast<int>(i), step, x[i], g[i]);
  }
  // The sum of what members i·size … would have delivered, each scaled, in their order; the same for all of them.
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
  static std::vector<Vector> mixed(const Mixing& mixing, const std::vector<Vector>& of) {
    std::vector<Vector> out = of;
    for (size_t i = 0; i < of.size(); ++i)
      for (size_t d = 0; d < of[i].size(); ++d) {
        double sum = 0;
        bool first = true;
        for (const Heard& one : mixing[i]) {
          const double product = one.weight * of[static_cast<size_t>(one.from)][d];
          sum = first ? product : sum + product;
          first = false;
        }
        out[i][d] = sum;
      }
    return out;
  }
  void combine(const Mixing& mixing) { x = mixed(mixing, x); }
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
