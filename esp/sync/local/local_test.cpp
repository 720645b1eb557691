// Local SGD with real ranks on problems with known solutions.
#include "esp/sync/local/local.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "esp/base/error.h"
#include "esp/sync/problems/reference_replicas.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::sync {
namespace {

constexpr int64_t kDim = 48;  // divisible by each tested number of ranks

ProblemTrainingOptions local(int64_t tau, int64_t steps = 12) {
  ProblemTrainingOptions o;
  o.sync.method = "local";
  o.sync.tau = tau;
  o.sync.deterministic = true;
  o.steps = steps;
  o.units = 3;
  return o;
}

std::unique_ptr<OptimizationProblem> heterogeneous_problem(int nodes) {
  ProblemOptions o;
  o.nodes = nodes;
  o.dim = kDim;
  o.heterogeneity = 1;
  o.noise = 0.3;
  o.max_curvature = 4;
  return make_quadratic(o);
}

struct TrainedReplicas {
  std::vector<std::vector<Vector>> each;  // x of each rank after every step
  std::vector<std::vector<bool>> equal;   // [rank][step]: the value of DivergentReplicas::equal
  std::vector<uint64_t> bytes;            // bytes sent by each rank
  const Vector& last(size_t r) const { return each[r].back(); }
};

TrainedReplicas run(const OptimizationProblem& problem, int ranks, const ProblemTrainingOptions& asked) {
  const auto n = static_cast<size_t>(ranks);
  TrainedReplicas all{std::vector<std::vector<Vector>>(n), std::vector<std::vector<bool>>(n), std::vector<uint64_t>(n)};
  run_on_ranks(ranks, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    ProblemTrainingOptions options = asked;
    options.on_step = [&](int64_t, std::span<const double> x, Strategy& strategy) {
      all.each[r].emplace_back(x.begin(), x.end());
      all.equal[r].push_back(!strategy.divergent_replicas() || strategy.divergent_replicas()->equal());
    };
    train_problem(problem, comm, options);
    for (const comm::CallStats& s : comm->stats()) all.bytes[r] += s.bytes_sent;
  });
  return all;
}

void expect_replicas(const TrainedReplicas& ranks, const std::vector<std::vector<Vector>>& expected) {
  for (size_t r = 0; r < ranks.each.size(); ++r)
    for (size_t k = 0; k < ranks.each[r].size(); ++k)
      ASSERT_TRUE(same_bits(ranks.each[r][k], expected[k][r])) << "rank " << r << ", step " << k;
}

double relative(const Vector& a, const Vector& b) {
  double apart = 0, whole = 0;
  for (size_t d = 0; d < a.size(); ++d) {
    apart += (a[d] - b[d]) * (a[d] - b[d]);
    whole += b[d] * b[d];
  }
  return std::sqrt(apart / whole);
}

TEST(Local, MatchesOneProcessReferenceBitForBit) {
  for (const int n : {1, 2, 3, 4, 8})
    for (const int64_t tau : {1, 3, 4, 100}) {
      const auto problem = heterogeneous_problem(n);
      const ProblemTrainingOptions options = local(tau);
      ReferenceReplicas expected(*problem, n, options.lr);
      std::vector<std::vector<Vector>> each;
      for (int64_t k = 0; k < options.steps; ++k) {
        expected.gradients(k);
        expected.adapt();
        if (n > 1 && (k + 1) % tau == 0) expected.average();
        each.push_back(expected.x);
      }
      expect_replicas(run(*problem, n, options), each);
    }
}

TEST(Local, ReplicasAreEqualOnlyAfterAnAverage) {
  const TrainedReplicas seen = run(*heterogeneous_problem(4), 4, local(4));
  for (size_t k = 0; k < 12; ++k) {
    const bool averaged = (k + 1) % 4 == 0;
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_EQ(seen.equal[r][k], averaged);
      if (r > 0) {
        EXPECT_EQ(same_bits(seen.each[r][k], seen.each[0][k]), averaged) << "step " << k;
      }
    }
  }
}

TEST(Local, MatchesAllReduceWhenTauIsOne) {
  const auto problem = heterogeneous_problem(4);
  ProblemTrainingOptions psgd = local(1);
  psgd.sync.method = "allreduce";
  const TrainedReplicas expected = run(*problem, 4, psgd), seen = run(*problem, 4, local(1));
  EXPECT_LE(relative(seen.last(2), expected.last(2)), 1e-11);
}

// Each average is one all-reduce of x and one of the consensus distance, so a period of 4 sends a quarter of the bytes.
TEST(Local, SendsBytesInInverseProportionToThePeriod) {
  const auto problem = heterogeneous_problem(4);
  const TrainedReplicas one = run(*problem, 4, local(1)), four = run(*problem, 4, local(4)),
                        never = run(*problem, 4, local(100));
  std::vector<uint64_t> expected(4);
  run_on_ranks(4, [&](comm::Communicator* comm) {
    std::vector<double> x(kDim);
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.algorithm = "direct";
    call.in = call.out = x.data();
    call.dtype = DType::f64;
    // element counts of the all-reduces of an average: the three units, and the consensus distance
    for (const size_t count : {size_t{24}, size_t{12}, size_t{12}, size_t{1}}) {
      call.count = count;
      comm->run(call);
    }
    for (const comm::CallStats& s : comm->stats()) expected[static_cast<size_t>(comm->rank())] += s.bytes_sent;
  });
  for (size_t r = 0; r < 4; ++r) {
    EXPECT_GE(expected[r], 2 * 3 * kDim * sizeof(double) / 4);
    EXPECT_EQ(one.bytes[r], 12 * expected[r]);
    EXPECT_EQ(four.bytes[r], 3 * expected[r]);
    EXPECT_EQ(never.bytes[r], 0u);
  }
}

TEST(Local, AllReducesGradientsUntilLocalStepsStart) {
  const auto problem = heterogeneous_problem(4);
  ProblemTrainingOptions options = local(3);
  options.sync.local_after = 5;
  ReferenceReplicas expected(*problem, 4, options.lr);
  std::vector<std::vector<Vector>> each;
  for (int64_t k = 0; k < options.steps; ++k) {
    expected.gradients(k);
    if (k < 5) expected.add_gradients(4);
    expected.adapt();
    if (k >= 5 && (k - 5 + 1) % 3 == 0) expected.average();
    each.push_back(expected.x);
  }
  const TrainedReplicas seen = run(*problem, 4, options);
  expect_replicas(seen, each);
  ProblemTrainingOptions psgd = options;
  psgd.sync.method = "allreduce";
  psgd.steps = options.steps = 5;
  // the first local_after steps send the same bytes as parallel SGD
  EXPECT_EQ(run(*problem, 4, options).bytes, run(*problem, 4, psgd).bytes);
}

TEST(Local, HierarchicalNodesSumGradientsAndAveragePeriodically) {
  const auto problem = heterogeneous_problem(6);
  ProblemTrainingOptions options = local(4);
  options.sync.hierarchical = true;
  options.ranks_per_node = 3;
  ReferenceReplicas expected(*problem, 6, options.lr);
  std::vector<std::vector<Vector>> each;
  for (int64_t k = 0; k < options.steps; ++k) {
    expected.gradients(k);
    expected.add_gradients(3);
    expected.adapt();
    if ((k + 1) % 4 == 0) expected.x.assign(6, ReferenceReplicas::mean({expected.x[0], expected.x[3]}));
    each.push_back(expected.x);
  }
  expect_replicas(run(*problem, 6, options), each);
}

TEST(Local, AllReplicasTakeTheMeanOfTheSampledReplicas) {
  const int n = 6;
  const auto problem = heterogeneous_problem(n);
  ProblemTrainingOptions options = local(3);
  options.sync.sample = 2;
  ReferenceReplicas expected(*problem, n, options.lr);
  std::vector<std::vector<Vector>> each;
  for (int64_t k = 0; k < options.steps; ++k) {
    expected.gradients(k);
    expected.adapt();
    if ((k + 1) % 3 == 0) {
      const std::vector<int> drawn = sampled_clients(options.sync.seed, k / 3, n, 2);
      Vector sum(kDim);  // replicas that are not sampled add zeros to the sum
      for (int i = 0; i < n; ++i)
        for (size_t d = 0; d < sum.size(); ++d)
          sum[d] += std::count(drawn.begin(), drawn.end(), i) ? 0.5 * expected.x[static_cast<size_t>(i)][d] : 0.0;
      expected.x.assign(static_cast<size_t>(n), sum);
    }
    each.push_back(expected.x);
  }
  expect_replicas(run(*problem, n, options), each);
}

TEST(Local, SamplesUniformlyWithoutRepetition) {
  std::vector<int> times(8);
  for (int64_t round = 0; round < 4000; ++round) {
    const std::vector<int> drawn = sampled_clients(3, round, 8, 3);
    ASSERT_EQ(std::set<int>(drawn.begin(), drawn.end()).size(), 3u);
    ASSERT_TRUE(std::is_sorted(drawn.begin(), drawn.end()));
    for (const int client : drawn) ++times[static_cast<size_t>(client)];
  }
  for (const int count : times) EXPECT_NEAR(count, 1500, 150);  // tolerance of five standard deviations
  EXPECT_EQ(sampled_clients(3, 7, 4, 0), (std::vector<int>{0, 1, 2, 3}));
}

// The replicas have read 1, 2 and 3 parts of the tokens: weights 1/6, 2/6 and 3/6.
TEST(Local, WeighsReplicasByTokensRead) {
  const auto problem = heterogeneous_problem(3);
  std::vector<Vector> x(3), after(3);
  run_on_ranks(3, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    ProblemTrainingOptions options = local(2, 2);
    options.sync.client_weights = "tokens";
    options.on_step = [&](int64_t step, std::span<const double> now, Strategy& strategy) {
      // Every step counts one token. After step 0, rank r counts 2r more: 2, 4 and 6 tokens in the round.
      if (step == 0) strategy.divergent_replicas()->set_local_tokens(2 * static_cast<double>(r));
      after[r].assign(now.begin(), now.end());
    };
    train_problem(*problem, comm, options);
  });
  ReferenceReplicas expected(*problem, 3, 0.05);
  for (int64_t k = 0; k < 2; ++k) {
    expected.gradients(k);
    expected.adapt();
  }
  for (size_t d = 0; d < static_cast<size_t>(kDim); ++d) {
    const double mean = (2 * expected.x[0][d] + 4 * expected.x[1][d] + 6 * expected.x[2][d]) / 12;
    for (size_t r = 0; r < 3; ++r) EXPECT_NEAR(after[r][d], mean, 1e-14);
  }
  EXPECT_TRUE(same_bits(after[0], after[1]) && same_bits(after[1], after[2]));
}

TEST(Local, AveragesTheOptimizerStateIfConfigured) {
  const auto problem = heterogeneous_problem(3);
  ProblemTrainingOptions options = local(1, 6);
  options.optimizer.momentum = 0.9;
  options.sync.average_state = true;
  ProblemTrainingOptions psgd = options;
  psgd.sync.method = "allreduce";
  // Momentum is linear in the gradients: if it is averaged with the weights, the result equals parallel SGD. If each
  // replica keeps its own momentum, the mean of the weights is equal too.
  const TrainedReplicas expected = run(*problem, 3, psgd), seen = run(*problem, 3, options);
  EXPECT_LE(relative(seen.last(1), expected.last(1)), 1e-11);
  options.optimizer = {.name = "adam"};
  options.sync.tau = 2;
  ProblemTrainingOptions apart = options;
  apart.sync.average_state = false;
  EXPECT_GT(relative(run(*problem, 3, options).last(1), run(*problem, 3, apart).last(1)), 1e-6);
}

TEST(DiLoCo, MatchesOneProcessReferenceBitForBit) {
  for (const int n : {1, 2, 5}) {
    const auto problem = heterogeneous_problem(n);
    ProblemTrainingOptions options = local(1);
    options.sync.method = "diloco";
    options.sync.period = 4;
    ReferenceReplicas expected(*problem, n, options.lr);
    Vector theta(kDim), u(kDim);
    std::vector<std::vector<Vector>> each;
    for (int64_t k = 0; k < options.steps; ++k) {
      expected.gradients(k);
      expected.adapt();
      if ((k + 1) % 4 == 0) {
        std::vector<Vector> back = expected.x;
        for (Vector& one : back)
          for (size_t d = 0; d < one.size(); ++d) one[d] = theta[d] + -one[d];
        const Vector delta = ReferenceReplicas::mean(back);
        for (size_t d = 0; d < theta.size(); ++d) {
          u[d] = 0.9 * u[d] + delta[d];
          theta[d] = theta[d] + -0.7 * delta[d] + -0.7 * 0.9 * u[d];
        }
        expected.x.assign(expected.x.size(), theta);
      }
      each.push_back(expected.x);
    }
    expect_replicas(run(*problem, n, options), each);
  }
}

TEST(DiLoCo, EqualsFedAvgWithoutMomentumAndWithOuterRateOne) {
  const auto problem = heterogeneous_problem(4);
  ProblemTrainingOptions fedavg = local(4), diloco = local(4);
  diloco.sync.method = "diloco";
  diloco.sync.period = 4;
  diloco.sync.outer_lr = 1;
  diloco.sync.outer_momentum = 0;
  for (const char* inner : {"sgd", "adamw"}) {
    fedavg.optimizer.name = diloco.optimizer.name = inner;
    const TrainedReplicas expected = run(*problem, 4, fedavg), seen = run(*problem, 4, diloco);
    EXPECT_LE(relative(seen.last(3), expected.last(3)), 1e-11) << inner;
    EXPECT_EQ(seen.bytes, expected.bytes);
  }
}

// For 16-bit weights the optimizer keeps fp32 master weights; local SGD must average the master weights.
TEST(Local, AveragesTheMasterWeightsOf16BitWeights) {
  const auto problem = heterogeneous_problem(4);
  ProblemTrainingOptions fine = local(4, 200), coarse = fine;
  fine.storage = DType::f32;
  coarse.storage = DType::bf16;
  fine.lr = coarse.lr = 0.002;
  const TrainedReplicas expected = run(*problem, 4, fine), seen = run(*problem, 4, coarse);
  EXPECT_LE(relative(seen.last(0), expected.last(0)), 0.004);
  for (size_t r = 1; r < 4; ++r) EXPECT_TRUE(same_bits(seen.last(r), seen.last(0)));
}

TEST(Local, RejectsInvalidOptions) {
  const auto problem = heterogeneous_problem(4);
  const auto refused = [&](const std::function<void(Options&)>& change) -> std::string {
    ProblemTrainingOptions options = local(2, 1);
    change(options.sync);
    try {
      run(*problem, 4, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(refused([](Options& o) { o.tau = 0; }).find("sync.tau: got 0"), std::string::npos);
  EXPECT_NE(refused([](Options& o) { o.sample = 5; }).find("sync.sample: got 5; expected 0 (all) to 4"),
            std::string::npos);
  EXPECT_NE(refused([](Options& o) { o.client_weights = "token"; }).find("tokens"), std::string::npos);
  EXPECT_NE(refused([](Options& o) {
              o.method = "diloco";
              o.outer_momentum = 1;
            }).find("sync.outer_momentum: got 1"),
            std::string::npos);
}

}  // namespace
}  // namespace esp::sync
