#include "esp/sync/problems/optimization_problem.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/base/rng.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::sync {
namespace {

std::vector<double> point(int64_t dim, uint64_t which) {
  std::vector<double> x(static_cast<size_t>(dim));
  for (size_t d = 0; d < x.size(); ++d) x[d] = 4 * random_unit(which, 5, d) - 2;
  return x;
}

std::vector<std::unique_ptr<OptimizationProblem>> both(double heterogeneity) {
  ProblemOptions o;
  o.nodes = 3;
  o.dim = 6;
  o.heterogeneity = heterogeneity;
  o.min_curvature = 0.5;
  o.max_curvature = 3;
  std::vector<std::unique_ptr<OptimizationProblem>> all;
  all.push_back(make_quadratic(o));
  all.push_back(make_logistic(o));
  return all;
}

TEST(OptimizationProblem, GradientsEqualTheDerivativeOfTheLoss) {
  for (const auto& problem : both(1))
    for (int node = 0; node < 3; ++node) {
      std::vector<double> x = point(6, 1), g(6);
      problem->gradient(node, x, g);
      for (size_t d = 0; d < 6; ++d) {
        const double at = x[d], step = 1e-5;
        x[d] = at + step;
        const double above = problem->loss(node, x);
        x[d] = at - step;
        const double below = problem->loss(node, x);
        x[d] = at;
        EXPECT_NEAR((above - below) / (2 * step), g[d], 1e-8);
      }
    }
}

TEST(OptimizationProblem, GradientsAreLipschitzWithTheReportedSmoothness) {
  for (const auto& problem : both(1))
    for (uint64_t trial = 0; trial < 200; ++trial) {
      const std::vector<double> a = point(6, 2 * trial), b = point(6, 2 * trial + 1);
      std::vector<double> ga(6), gb(6);
      problem->gradient(static_cast<int>(trial % 3), a, ga);
      problem->gradient(static_cast<int>(trial % 3), b, gb);
      double x = 0, g = 0;
      for (size_t d = 0; d < 6; ++d) {
        x += (a[d] - b[d]) * (a[d] - b[d]);
        g += (ga[d] - gb[d]) * (ga[d] - gb[d]);
      }
      EXPECT_LE(std::sqrt(g), problem->smoothness() * std::sqrt(x) * (1 + 1e-12));
    }
  EXPECT_EQ(both(0)[0]->smoothness(), 3);
  EXPECT_LE(both(1)[0]->smoothness(), 3.75);
}

TEST(OptimizationProblem, GradientVanishesAtTheMinimiserAndHeterogeneitySeparatesNodes) {
  for (const double heterogeneity : {0.0, 2.0})
    for (const auto& problem : both(heterogeneity)) {
      EXPECT_LE(problem->squared_gradient(problem->minimiser()), 1e-24);
      std::vector<double> g(6);
      double apart = 0;
      for (int node = 0; node < 3; ++node) {
        problem->gradient(node, problem->minimiser(), g);
        for (const double one : g) apart += one * one;
      }
      if (heterogeneity == 0)
        EXPECT_LE(apart, 1e-24);
      else
        EXPECT_GT(apart, 0.01);
    }
}

TEST(OptimizationProblem, NoiseHasMeanZeroAndTheGivenVariance) {
  ProblemOptions o;
  o.nodes = 2;
  o.dim = 8;
  o.noise = 0.7;
  const auto problem = make_quadratic(o);
  const std::vector<double> x = point(8, 3);
  std::vector<double> exact(8), noisy(8), mean(8);
  problem->gradient(1, x, exact);
  double square = 0;
  const int64_t draws = 20'000;
  for (int64_t step = 0; step < draws; ++step) {
    problem->noisy_gradient(1, step, x, noisy);
    for (size_t d = 0; d < 8; ++d) {
      mean[d] += (noisy[d] - exact[d]) / static_cast<double>(draws);
      square += (noisy[d] - exact[d]) * (noisy[d] - exact[d]) / static_cast<double>(draws);
    }
  }
  EXPECT_NEAR(square, 0.49, 0.01);
  for (const double one : mean) EXPECT_NEAR(one, 0, 0.01);
  std::vector<double> again(8);
  problem->noisy_gradient(1, 5, x, noisy);
  problem->noisy_gradient(1, 5, x, again);
  EXPECT_EQ(noisy, again);
  problem->noisy_gradient(0, 5, x, again);
  EXPECT_NE(noisy, again);
}

// In the limit every coordinate has E[x²] = γσ²/(n·a·(2 − γa)): n ranks reduce the noise by a factor of n.
TEST(OptimizationProblem, AllReduceReducesNoiseVarianceByTheNumberOfRanks) {
  const double a = 1.5, lr = 0.2, sigma = 0.8;
  const int64_t dim = 2000;
  for (const int n : {1, 2, 4, 8}) {
    const auto problem =
        make_quadratic(std::vector(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(dim), a)),
                       std::vector(static_cast<size_t>(n), std::vector<double>(static_cast<size_t>(dim), 0.0)),
                       // noise with standard deviation sigma per coordinate
                       sigma * std::sqrt(static_cast<double>(dim)));
    double mean = 0;
    int seen = 0;
    run_on_ranks(n, [&](comm::Communicator* comm) {
      ProblemTrainingOptions options;
      options.sync.method = "allreduce";
      options.lr = lr;
      options.steps = 120;
      if (comm->rank() == 0)
        options.on_step = [&](int64_t step, std::span<const double> x, Strategy&) {
          if (step < 40 || step % 8 != 0) return;
          for (const double one : x) mean += one * one / static_cast<double>(dim);
          ++seen;
        };
      train_problem(*problem, comm, options);
    });
    const double expected = lr * sigma * sigma / (n * a * (2 - lr * a));
    EXPECT_NEAR(mean / seen / expected, 1, 0.05) << n << " ranks";
  }
}

}  // namespace
}  // namespace esp::sync
