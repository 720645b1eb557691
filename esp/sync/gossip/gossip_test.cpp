// Gossip with real ranks on problems with known solutions.
#include "esp/sync/gossip/gossip.h"

#include <gtest/gtest.h>

#include <cmath>

#include "esp/base/error.h"
#include "esp/sync/problems/reference_replicas.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::sync {
namespace {

ProblemTrainingOptions gossip(const std::string& topology, int64_t steps = 13) {
  ProblemTrainingOptions o;
  o.sync.method = "gossip";
  o.sync.topology = topology;
  o.sync.deterministic = true;
  o.steps = steps;
  o.units = 3;
  return o;
}

std::unique_ptr<OptimizationProblem> heterogeneous_problem(int nodes, double noise = 0.3) {
  ProblemOptions o;
  o.nodes = nodes;
  o.dim = 37;
  o.heterogeneity = 1;
  o.noise = noise;
  o.max_curvature = 4;
  return make_quadratic(o);
}

struct TrainedReplicas {
  std::vector<Vector> x;                  // final x of each rank
  std::vector<std::vector<Vector>> each;  // x of each rank after every step
  std::vector<uint64_t> sent, reduced;    // bytes that each rank sent: to neighbours, and in all-reduces
};

TrainedReplicas run(const OptimizationProblem& problem, int ranks, const ProblemTrainingOptions& asked) {
  TrainedReplicas all{
      std::vector<Vector>(static_cast<size_t>(ranks)), std::vector<std::vector<Vector>>(static_cast<size_t>(ranks)),
      std::vector<uint64_t>(static_cast<size_t>(ranks)), std::vector<uint64_t>(static_cast<size_t>(ranks))};
  run_on_ranks(ranks, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    ProblemTrainingOptions options = asked;
    options.on_step = [&](int64_t, std::span<const double> x, Strategy&) {
      all.each[r].emplace_back(x.begin(), x.end());
    };
    all.x[r] = train_problem(problem, comm, options);
    for (const comm::CallStats& s : comm->stats()) {
      if (s.op == comm::Op::send) all.sent[r] += s.bytes_sent;
      if (s.op == comm::Op::all_reduce) all.reduced[r] += s.bytes_sent;
    }
  });
  return all;
}

void expect_replicas(const TrainedReplicas& ranks, const ReferenceReplicas& expected, const std::string& what) {
  for (size_t r = 0; r < ranks.x.size(); ++r)
    EXPECT_TRUE(same_bits(ranks.x[r], expected.x[r])) << what << ", rank " << r;
}

double relative(const Vector& a, const Vector& b) {
  double apart = 0, whole = 0;
  for (size_t d = 0; d < a.size(); ++d) {
    apart += (a[d] - b[d]) * (a[d] - b[d]);
    whole += b[d] * b[d];
  }
  return std::sqrt(apart / whole);
}

TEST(Gossip, MatchesOneProcessReferenceOnEveryTopologyAndInEveryMode) {
  for (const TopologyRow& row : topologies())
    for (const int n : {2, 3, 5, 8})
      for (const int64_t period : {0, 4})
        for (const char* mode : {"adapt_then_combine", "combine_then_adapt", "adapt_with_combine"}) {
          ProblemTrainingOptions options = gossip(std::string(row.name));
          options.sync.gossip_mode = mode;
          options.sync.period = period;
          const auto problem = heterogeneous_problem(n);
          ReferenceReplicas expected(*problem, n, options.lr);
          const GossipTopology topology = row.make(n);
          const auto combine = [&](int64_t k) {
            if (period > 0 && (k + 1) % period == 0) return expected.average();
            expected.combine(topology.at(k));
          };
          for (int64_t k = 0; k < options.steps; ++k) {
            if (mode[0] == 'c' && k > 0) combine(k - 1);
            expected.gradients(k);
            if (std::string(mode) == "adapt_with_combine") combine(k);
            expected.adapt();
            if (std::string(mode) == "adapt_then_combine") combine(k);
          }
          expect_replicas(run(*problem, n, options), expected,
                          std::string(row.name) + " of " + std::to_string(n) + ", " + mode);
        }
}

TEST(Gossip, TrackingMatchesOneProcessReferenceAndPreservesTheGradientSum) {
  const int n = 6;
  for (const char* name : {"ring", "one_peer"}) {
    ProblemTrainingOptions options = gossip(name);
    options.sync.tracking = true;
    const auto problem = heterogeneous_problem(n);
    const GossipTopology topology = make_topology(name, n);
    ReferenceReplicas expected(*problem, n, options.lr);
    std::vector<Vector> y, before;
    for (int64_t k = 0; k < options.steps; ++k) {
      expected.gradients(k);
      const std::vector<Vector> g = expected.g;
      if (k == 0) {
        y = g;
      } else {
        for (size_t i = 0; i < y.size(); ++i)
          for (size_t d = 0; d < y[i].size(); ++d) y[i][d] = y[i][d] + g[i][d] + -before[i][d];
        y = ReferenceReplicas::mixed(topology.at(k - 1), y);
      }
      before = g;
      const Vector sum_y = ReferenceReplicas::mean(y), sum_g = ReferenceReplicas::mean(g);
      for (size_t d = 0; d < sum_y.size(); ++d) EXPECT_NEAR(sum_y[d], sum_g[d], 1e-12);
      expected.g = y;
      expected.adapt();
      expected.combine(topology.at(k));
    }
    expect_replicas(run(*problem, n, options), expected, name);
  }
}

TEST(Gossip, ChangesTheMeanByTheMeanGradientOnly) {
  const int n = 7;
  const auto problem = heterogeneous_problem(n);
  const ProblemTrainingOptions options = gossip("exponential");
  const TrainedReplicas seen = run(*problem, n, options);
  std::vector<Vector> x(static_cast<size_t>(n), Vector(37));
  for (int64_t k = 0; k < options.steps; ++k) {
    std::vector<Vector> g = x, next;
    for (size_t i = 0; i < x.size(); ++i) {
      problem->noisy_gradient(static_cast<int>(i), k, x[i], g[i]);
      next.push_back(seen.each[i][static_cast<size_t>(k)]);
    }
    const Vector before = ReferenceReplicas::mean(x), after = ReferenceReplicas::mean(next),
                 slope = ReferenceReplicas::mean(g);
    for (size_t d = 0; d < 37; ++d) EXPECT_NEAR(after[d], before[d] - options.lr * slope[d], 1e-13);
    x = next;
  }
}

// n = 8 on a ring, f_i = ½ h_i (x − i)², h_i = 1 + i mod 3, γ = 0.05.
TEST(Gossip, TrackingRemovesTheBiasOfHeterogeneousNodes) {
  std::vector<std::vector<double>> h, c;
  for (int i = 0; i < 8; ++i) {
    h.push_back({static_cast<double>(1 + i % 3)});
    c.push_back({static_cast<double>(i)});
  }
  const auto problem = make_quadratic(h, c);
  const auto worst = [&](bool tracking) {
    ProblemTrainingOptions options = gossip("ring", 2500);
    options.units = 1;
    options.sync.tracking = tracking;
    double most = 0;
    for (const Vector& x : run(*problem, 8, options).x) most = std::max(most, std::abs(x[0] - problem->minimiser()[0]));
    return most;
  };
  EXPECT_NEAR(worst(false), 0.745, 0.0005);
  EXPECT_LE(worst(true), 5e-14);
}

TEST(Gossip, MatchesAllReduceOnTheFullGraph) {
  const auto problem = heterogeneous_problem(5);
  ProblemTrainingOptions psgd = gossip("full");
  psgd.sync.method = "allreduce";
  const TrainedReplicas expected = run(*problem, 5, psgd);
  ProblemTrainingOptions every = gossip("ring");
  every.sync.period = 1;
  for (const ProblemTrainingOptions& options : {gossip("full"), every}) {
    const TrainedReplicas seen = run(*problem, 5, options);
    for (size_t r = 0; r < 5; ++r) EXPECT_LE(relative(seen.x[r], expected.x[r]), 1e-11);
  }
}

TEST(Gossip, SendsWeightsOnlyToOutNeighbours) {
  const int n = 8;
  const auto problem = heterogeneous_problem(n);
  const uint64_t S = 37 * sizeof(double), steps = 13;
  const auto sent = [&](ProblemTrainingOptions options) { return run(*problem, n, options); };
  for (const uint64_t bytes : sent(gossip("ring")).sent) EXPECT_EQ(bytes, 2 * S * steps);
  for (const uint64_t bytes : sent(gossip("exponential")).sent) EXPECT_EQ(bytes, 3 * S * steps);
  for (const uint64_t bytes : sent(gossip("one_peer")).sent) EXPECT_EQ(bytes, S * steps);
  for (const uint64_t bytes : sent(gossip("full")).sent) EXPECT_EQ(bytes, 7 * S * steps);
  const TrainedReplicas star = sent(gossip("star"));
  EXPECT_EQ(star.sent[0], 7 * S * steps);
  for (size_t r = 1; r < 8; ++r) EXPECT_EQ(star.sent[r], S * steps);
  for (const uint64_t bytes : star.reduced) EXPECT_EQ(bytes, 0u);
  ProblemTrainingOptions tracking = gossip("ring");
  tracking.sync.tracking = true;
  // sends x in every step, and y in every step except the first, in which y = g
  for (const uint64_t bytes : sent(tracking).sent) EXPECT_EQ(bytes, 2 * S * (2 * steps - 1));
  ProblemTrainingOptions pga = gossip("ring", 12);
  pga.sync.period = 4;
  for (const uint64_t bytes : sent(pga).sent) EXPECT_EQ(bytes, 2 * S * 9);
}

TEST(Gossip, RanksOfANodeFormOneReplicaWhenHierarchical) {
  const int n = 6;
  const auto problem = heterogeneous_problem(n);
  ProblemTrainingOptions options = gossip("ring");
  options.sync.hierarchical = true;
  options.ranks_per_node = 2;
  ReferenceReplicas expected(*problem, n, options.lr);
  const GossipTopology ring = make_topology("ring", 3);
  for (int64_t k = 0; k < options.steps; ++k) {
    expected.gradients(k);
    expected.add_gradients(2);
    expected.adapt();
    const std::vector<Vector> mixed =
        ReferenceReplicas::mixed(ring.at(k), {expected.x[0], expected.x[2], expected.x[4]});
    for (size_t i = 0; i < 6; ++i) expected.x[i] = mixed[i / 2];
  }
  expect_replicas(run(*problem, n, options), expected, "three nodes of two");
}

TEST(Gossip, LoadsTheMeanAndRestoresItsWeights) {
  const int n = 5;
  const auto problem = heterogeneous_problem(n);
  std::vector<double> consensus(static_cast<size_t>(n));
  std::vector<Vector> averaged(static_cast<size_t>(n)), saved(static_cast<size_t>(n));
  ProblemTrainingOptions options = gossip("ring", 4);
  std::vector<Vector> own(static_cast<size_t>(n));
  run_on_ranks(n, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    ProblemTrainingOptions mine = options;
    mine.on_step = [&](int64_t step, std::span<const double> x, Strategy& strategy) {
      if (step != 3) return;
      DivergentReplicas& divergent = *strategy.divergent_replicas();
      EXPECT_FALSE(divergent.equal());
      const auto values = [&] {
        Vector all;
        for (const optim::OptimizerShard& one : strategy.optimizer_shards())
          all.insert(all.end(), one.values.as<double>(), one.values.as<double>() + one.values.count());
        return all;
      };
      own[r].assign(x.begin(), x.end());
      {
        const ScopedAverageWeights mean(&divergent);
        averaged[r] = values();
      }
      EXPECT_TRUE(same_bits(values(), own[r]));
      for (int again = 0; again < 2; ++again) {
        saved[r].clear();
        for (const optim::ValueShard& one : strategy.checkpoint_shards())
          saved[r].insert(saved[r].end(), one.values.as<double>(), one.values.as<double>() + one.values.count());
      }
      for (const ReplicaMetric& measure : divergent.take_metrics())
        if (measure.name == "consensus") consensus[r] = measure.value;
      EXPECT_TRUE(divergent.take_metrics().empty());
    };
    train_problem(*problem, comm, mine);
  });
  const Vector mean = ReferenceReplicas::mean(own);
  double apart = 0;
  for (const Vector& x : own)
    for (size_t d = 0; d < x.size(); ++d) apart += (x[d] - mean[d]) * (x[d] - mean[d]) / n;
  for (size_t r = 0; r < 5; ++r) {
    EXPECT_TRUE(same_bits(averaged[r], mean)) << r;
    EXPECT_TRUE(r == 0 ? same_bits(saved[r], mean) : saved[r].empty()) << r;
    EXPECT_NEAR(consensus[r], apart, 1e-12);
  }
}

TEST(Gossip, RejectsInvalidOptions) {
  const auto problem = heterogeneous_problem(4);
  const auto refused = [&](const std::function<void(ProblemTrainingOptions&)>& change) -> std::string {
    ProblemTrainingOptions options = gossip("ring", 1);
    change(options);
    try {
      run(*problem, 4, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  EXPECT_NE(refused([](ProblemTrainingOptions& o) { o.sync.gossip_mode = "combine"; }).find("combine_then_adapt"),
            std::string::npos);
  EXPECT_NE(refused([](ProblemTrainingOptions& o) { o.sync.period = -1; }).find("sync.period: got -1"),
            std::string::npos);
  EXPECT_NE(refused([](ProblemTrainingOptions& o) {
              o.sync.tracking = true;
              o.storage = DType::bf16;
            }).find("train.precision = \"fp32\""),
            std::string::npos);
  EXPECT_NE(refused([](ProblemTrainingOptions& o) {
              o.sync.hierarchical = true;
              o.ranks_per_node = 3;
            }).find("4 replicas cannot be divided equally into nodes of 3"),
            std::string::npos);
}

}  // namespace
}  // namespace esp::sync
