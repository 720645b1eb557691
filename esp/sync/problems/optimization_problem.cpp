#include "esp/sync/problems/optimization_problem.h"

#include <algorithm>
#include <cmath>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/base/rng.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {
namespace {

// Random streams, one per use.
enum RandomStream : uint64_t { kCommon = 0x70726f62, kCentres, kExamples, kLabels, kNoise, kCurvatures };

std::vector<double> normals(uint64_t seed, uint64_t purpose, uint64_t which, int64_t count) {
  std::vector<double> x(static_cast<size_t>(count));
  kernel::fill_normal(x.data(), 0, 1, seed + (which << 32), purpose, 0, count, DType::f64, {});
  return x;
}

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class Quadratic final : public OptimizationProblem {
 public:
  Quadratic(std::vector<std::vector<double>> curvatures, std::vector<std::vector<double>> centres, double noise,
            uint64_t seed)
      : OptimizationProblem(static_cast<int>(centres.size()), static_cast<int64_t>(centres.at(0).size()), noise, seed),
        h_(std::move(curvatures)),
        c_(std::move(centres)) {
    for (size_t d = 0; d < c_[0].size(); ++d) {
      double pull = 0, weight = 0;
      for (size_t i = 0; i < c_.size(); ++i) {
        pull += h_[i][d] * c_[i][d];
        weight += h_[i][d];
        smoothness_ = std::max(smoothness_, h_[i][d]);
      }
      minimiser_.push_back(pull / weight);
    }
  }
  double smoothness() const override { return smoothness_; }
  const std::vector<double>& minimiser() const override { return minimiser_; }
  double loss(int node, std::span<const double> x) const override {
    const auto i = static_cast<size_t>(node);
    double sum = 0;
    for (size_t d = 0; d < x.size(); ++d) sum += h_[i][d] * (x[d] - c_[i][d]) * (x[d] - c_[i][d]) / 2;
    return sum;
  }
  void gradient(int node, std::span<const double> x, std::span<double> g) const override {
    const auto i = static_cast<size_t>(node);
    for (size_t d = 0; d < x.size(); ++d) g[d] = h_[i][d] * (x[d] - c_[i][d]);
  }

 private:
  std::vector<std::vector<double>> h_, c_;
  double smoothness_ = 0;
  std::vector<double> minimiser_;
};

class Logistic final : public OptimizationProblem {
 public:
  explicit Logistic(const ProblemOptions& o)
      : OptimizationProblem(o.nodes, o.dim, o.noise, o.seed), examples_(o.examples), decay_(o.decay) {
    const std::vector<double> common = normals(o.seed, kCommon, 0, o.dim);
    for (int node = 0; node < o.nodes; ++node) {
      const auto which = static_cast<uint64_t>(node);
      std::vector<double> answer = normals(o.seed, kCentres, which, o.dim);
      for (size_t d = 0; d < answer.size(); ++d) answer[d] = common[d] + o.heterogeneity * answer[d];
      // With heterogeneity 0 all nodes have the same examples, and so the same f_i.
      const uint64_t drawn = o.heterogeneity == 0 ? 0 : which;
      rows_.push_back(normals(o.seed, kExamples, drawn, o.examples * o.dim));
      const std::vector<double> doubt = normals(o.seed, kLabels, drawn, o.examples);
      std::vector<double>& labels = labels_.emplace_back();
      for (int64_t s = 0; s < o.examples; ++s)
        labels.push_back(dot(row(node, s), answer) + doubt[static_cast<size_t>(s)] > 0 ? 1 : -1);
      smoothness_ = std::max(smoothness_, largest_curvature(node));
    }
    find_minimiser();
  }
  double smoothness() const override { return smoothness_; }
  const std::vector<double>& minimiser() const override { return minimiser_; }

  double loss(int node, std::span<const double> x) const override {
    double sum = 0;
    for (int64_t s = 0; s < examples_; ++s) {
      const double margin = label(node, s) * dot(row(node, s), x);
      sum += std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin)));
    }
    return sum / static_cast<double>(examples_) + decay_ / 2 * dot(x, x);
  }
  void gradient(int node, std::span<const double> x, std::span<double> g) const override {
    for (size_t d = 0; d < x.size(); ++d) g[d] = decay_ * x[d];
    for (int64_t s = 0; s < examples_; ++s) {
      const auto a = row(node, s);
      const double b = label(node, s), pull = -b / (1 + std::exp(b * dot(a, x))) / static_cast<double>(examples_);
      for (size_t d = 0; d < x.size(); ++d) g[d] += pull * a[d];
    }
  }

 private:
  std::span<const double> row(int node, int64_t s) const {
    return std::span(rows_[static_cast<size_t>(node)])
        .subspan(static_cast<size_t>(s * dim()), static_cast<size_t>(dim()));
  }
  double label(int node, int64_t s) const { return labels_[static_cast<size_t>(node)][static_cast<size_t>(s)]; }

  // Bound of the curvature: λ plus the largest eigenvalue of AᵀA/4m, found by power iteration and rounded up.
  double largest_curvature(int node) const {
    std::vector<double> v(static_cast<size_t>(dim()), 1.0), next(v.size());
    double eigenvalue = 0;
    for (int round = 0; round < 200; ++round) {
      std::fill(next.begin(), next.end(), 0);
      for (int64_t s = 0; s < examples_; ++s) {
        const auto a = row(node, s);
        const double along = dot(a, v) / (4 * static_cast<double>(examples_));
        for (size_t d = 0; d < v.size(); ++d) next[d] += along * a[d];
      }
      eigenvalue = std::sqrt(dot(next, next) / dot(v, v));
      v = next;
      const double length = std::sqrt(dot(v, v));
      for (double& one : v) one /= length;
    }
    return decay_ + eigenvalue * (1 + 1e-6);
  }

  void find_minimiser() {
    minimiser_.assign(static_cast<size_t>(dim()), 0);
    std::vector<double> g(minimiser_.size()), sum(minimiser_.size());
    for (int round = 0; round < 100'000; ++round) {
      std::fill(sum.begin(), sum.end(), 0);
      for (int node = 0; node < nodes(); ++node) {
        gradient(node, minimiser_, g);
        for (size_t d = 0; d < g.size(); ++d) sum[d] += g[d] / nodes();
      }
      if (dot(sum, sum) < 1e-28) return;
      for (size_t d = 0; d < sum.size(); ++d) minimiser_[d] -= sum[d] / smoothness_;
    }
    ESP_CHECK(false, "logistic problem: found no minimiser by gradient descent (smoothness {})", smoothness_);
  }

  const int64_t examples_;
  const double decay_;
  std::vector<std::vector<double>> rows_, labels_;
  double smoothness_ = 0;
  std::vector<double> minimiser_;
};

}  // namespace

double OptimizationProblem::loss(std::span<const double> x) const {
  double sum = 0;
  for (int node = 0; node < nodes_; ++node) sum += loss(node, x);
  return sum / nodes_;
}

void OptimizationProblem::noisy_gradient(int node, int64_t step, std::span<const double> x, std::span<double> g) const {
  gradient(node, x, g);
  if (noise_ == 0) return;
  thread_local std::vector<double> drawn;
  drawn.resize(x.size());
  kernel::fill_normal(drawn.data(), 0, noise_ / std::sqrt(static_cast<double>(dim_)),
                      seed_ + (static_cast<uint64_t>(node) << 32), kNoise, step * dim_, dim_, DType::f64, {});
  for (size_t d = 0; d < g.size(); ++d) g[d] += drawn[d];
}

double OptimizationProblem::squared_gradient(std::span<const double> x) const {
  std::vector<double> g(x.size()), sum(x.size());
  for (int node = 0; node < nodes_; ++node) {
    gradient(node, x, g);
    for (size_t d = 0; d < g.size(); ++d) sum[d] += g[d] / nodes_;
  }
  return dot(sum, sum);
}

double OptimizationProblem::squared_distance(std::span<const double> x) const {
  double sum = 0;
  for (size_t d = 0; d < x.size(); ++d) sum += (x[d] - minimiser()[d]) * (x[d] - minimiser()[d]);
  return sum;
}

std::unique_ptr<OptimizationProblem> make_quadratic(const ProblemOptions& o) {
  const std::vector<double> common = normals(o.seed, kCommon, 0, o.dim);
  // below 1, so that each node scales a curvature by a factor from 0.5 to 1.5
  const double unlike = o.heterogeneity / (1 + o.heterogeneity);
  std::vector<std::vector<double>> curvatures, centres;
  for (int node = 0; node < o.nodes; ++node) {
    std::vector<double> h(static_cast<size_t>(o.dim)),
        c = normals(o.seed, kCentres, static_cast<uint64_t>(node), o.dim);
    for (size_t d = 0; d < c.size(); ++d) {
      const double part = c.size() == 1 ? 0 : static_cast<double>(d) / static_cast<double>(c.size() - 1);
      const double bend = random_unit(o.seed + (static_cast<uint64_t>(node) << 32), kCurvatures, d) - 0.5;
      h[d] = (o.min_curvature + part * (o.max_curvature - o.min_curvature)) * (1 + unlike * bend);
      c[d] = common[d] + o.heterogeneity * c[d];
    }
    curvatures.push_back(std::move(h));
    centres.push_back(std::move(c));
  }
  return make_quadratic(std::move(curvatures), std::move(centres), o.noise, o.seed);
}

std::unique_ptr<OptimizationProblem> make_quadratic(std::vector<std::vector<double>> curvatures,
                                                    std::vector<std::vector<double>> centres, double noise,
                                                    uint64_t seed) {
  return std::make_unique<Quadratic>(std::move(curvatures), std::move(centres), noise, seed);
}

std::unique_ptr<OptimizationProblem> make_logistic(const ProblemOptions& options) {
  return std::make_unique<Logistic>(options);
}

}  // namespace esp::sync
