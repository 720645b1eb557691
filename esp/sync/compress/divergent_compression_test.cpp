// Compression with divergent replicas: real ranks on optimization problems, compared with the one-process reference.
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/sync/compress/reference_feedback.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/local/local.h"
#include "esp/sync/problems/reference_replicas.h"
#include "esp/sync/problems/train_problem.h"

namespace esp::sync {
namespace {

constexpr int64_t kDim = 200;
const std::vector<size_t> kUnits = {100, 50, 50};  // the unit sizes into which train_problem() divides kDim

ProblemTrainingOptions options_of(const std::string& method, const std::string& compress, const std::string& feedback) {
  ProblemTrainingOptions o;
  o.sync.method = method;
  o.sync.compress = compress;
  o.sync.feedback = feedback;
  o.sync.tau = o.sync.period = 3;
  o.sync.deterministic = true;
  o.sync.seed = 11;
  o.steps = 12;
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
  std::vector<Vector> x;
  std::vector<uint64_t> compressed, sent;  // bytes that each rank sent: in all calls, and in point-to-point messages
};

TrainedReplicas run(const OptimizationProblem& problem, int ranks, const ProblemTrainingOptions& options) {
  const auto n = static_cast<size_t>(ranks);
  TrainedReplicas all{std::vector<Vector>(n), std::vector<uint64_t>(n), std::vector<uint64_t>(n)};
  run_on_ranks(ranks, [&](comm::Communicator* comm) {
    const auto r = static_cast<size_t>(comm->rank());
    all.x[r] = train_problem(problem, comm, options);
    for (const comm::CallStats& s : comm->stats()) {
      all.compressed[r] += s.bytes_sent;
      if (s.op == comm::Op::send) all.sent[r] += s.bytes_sent;
    }
  });
  return all;
}

uint64_t seed_of(const ProblemTrainingOptions& options, size_t unit) {
  return options.sync.seed + unit * 0x9e3779b97f4a7c15u;
}

// Reference in one process. In every round the replicas exchange their changes relative to θ, unit by unit; then θ
// moves by the result.
std::vector<Vector> emulate_rounds(const OptimizationProblem& problem, int n, const ProblemTrainingOptions& options) {
  const auto compressor = make_compressor(options.sync.compress);
  const bool outer = options.sync.method == "diloco";
  ReferenceReplicas replicas(problem, n, options.lr);
  Vector theta(kDim), u(kDim);
  std::vector<ReferenceFeedback<double>> units;
  for (size_t unit = 0; unit < kUnits.size(); ++unit) {
    const auto count = static_cast<int64_t>(kUnits[unit]);
    const AggregationMethod method =
        cheapest_method(*compressor, count, DType::f64, n, {find_feedback(options.sync.feedback).two_phase});
    units.emplace_back(*compressor, method, n, kUnits[unit], seed_of(options, unit), 1);
  }
  for (int64_t k = 0; k < options.steps; ++k) {
    replicas.gradients(k);
    replicas.adapt();
    if ((k + 1) % 3 != 0) continue;
    size_t first = 0;
    for (size_t unit = 0; unit < kUnits.size(); first += kUnits[unit++]) {
      std::vector<Vector> back;
      for (const Vector& x : replicas.x) {
        Vector& one = back.emplace_back(kUnits[unit]);
        for (size_t d = 0; d < one.size(); ++d) one[d] = (theta[first + d] - x[first + d]) * (1.0 / n);
      }
      const Vector delta = units[unit].run(options.sync.feedback, back);
      for (size_t d = 0; d < delta.size(); ++d) {
        double &t = theta[first + d], &v = u[first + d];
        if (outer) {
          v = options.sync.outer_momentum * v + delta[d];
          t = t + -options.sync.outer_lr * delta[d] + -options.sync.outer_lr * options.sync.outer_momentum * v;
        } else {
          t = t - delta[d];
        }
      }
    }
    replicas.x.assign(replicas.x.size(), theta);
  }
  return replicas.x;
}

TEST(CompressedLocalSteps, MatchOneProcessReferenceBitForBit) {
  for (const char* method : {"local", "diloco"})
    for (const auto& pair : {std::pair<std::string, std::string>{"topk:0.1", "ef"},
                             {"sign", "doublesqueeze"},
                             {"topk:0.2", "ef21"},
                             {"topk:0.1", "neolithic:2"},
                             {"qsgd:16:64", "none"}}) {
      const ProblemTrainingOptions options = options_of(method, pair.first, pair.second);
      const auto problem = heterogeneous_problem(4);
      const TrainedReplicas seen = run(*problem, 4, options);
      const std::vector<Vector> want = emulate_rounds(*problem, 4, options);
      for (size_t r = 0; r < 4; ++r)
        EXPECT_TRUE(same_bits(seen.x[r], want[r]))
            << method << ' ' << pair.first << ' ' << pair.second << " rank " << r;
    }
}

// In each round a rank sends the compressed change of every unit, and one number for the consensus distance.
TEST(CompressedLocalSteps, SendTheBytesOfTheirAggregationMethod) {
  const auto compressor = make_compressor("topk:0.1");
  const TrainedReplicas seen = run(*heterogeneous_problem(4), 4, options_of("local", "topk:0.1", "ef"));
  uint64_t number = 0;
  run_on_ranks(4, [&](comm::Communicator* comm) {
    double value = 0;
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.algorithm = "direct";
    call.in = call.out = &value;
    call.count = 1;
    call.dtype = DType::f64;
    comm->run(call);
    if (comm->rank() == 1)
      for (const comm::CallStats& s : comm->stats()) number += s.bytes_sent;
  });
  uint64_t round = number;
  for (const size_t unit : kUnits)
    round += bytes_sent(AggregationMethod::gather, *compressor, static_cast<int64_t>(unit), DType::f64, 4, 1);
  EXPECT_EQ(seen.compressed[1], 4 * round);
}

TEST(CompressedLocalSteps, EqualLocalSgdWithIdentityCompressor) {
  const auto problem = heterogeneous_problem(4);
  const TrainedReplicas plain = run(*problem, 4, options_of("local", "none", "none"));
  const TrainedReplicas compressed = run(*problem, 4, options_of("local", "identity", "none"));
  for (size_t d = 0; d < static_cast<size_t>(kDim); ++d) EXPECT_NEAR(compressed.x[0][d], plain.x[0][d], 1e-12);
}

// Only the sampled clients push their weights, and the mean adds them in client order. A replica that is not sampled
// sends bytes only if it is a server.
TEST(FederatedAveraging, AveragesTheSampledClientsOverServers) {
  const int n = 5;
  const auto problem = heterogeneous_problem(n);
  ProblemTrainingOptions options = options_of("local", "none", "none");
  options.sync.average_over = "servers";
  options.sync.ps.servers = 2;
  options.sync.sample = 2;
  ReferenceReplicas replicas(*problem, n, options.lr);
  std::vector<uint64_t> bytes(n);
  for (int64_t k = 0; k < options.steps; ++k) {
    replicas.gradients(k);
    replicas.adapt();
    if ((k + 1) % 3 != 0) continue;
    const std::vector<int> drawn = sampled_clients(options.sync.seed, k / 3, n, 2);
    Vector mean(kDim);
    for (size_t d = 0; d < mean.size(); ++d)
      mean[d] = 0.5 * replicas.x[static_cast<size_t>(drawn[0])][d] + 0.5 * replicas.x[static_cast<size_t>(drawn[1])][d];
    replicas.x.assign(replicas.x.size(), mean);
    for (const size_t unit : kUnits)
      for (int r = 0; r < n; ++r) {
        const auto own = r < 2 ? comm::chunk_of(unit, 2, r).count : 0;
        if (std::count(drawn.begin(), drawn.end(), r)) bytes[static_cast<size_t>(r)] += (unit - own) * 8;
        bytes[static_cast<size_t>(r)] += (n - 1) * own * 8;
      }
  }
  const TrainedReplicas seen = run(*problem, n, options);
  for (size_t r = 0; r < n; ++r) {
    EXPECT_TRUE(same_bits(seen.x[r], replicas.x[r])) << "rank " << r;
    EXPECT_EQ(seen.sent[r], bytes[r]) << "rank " << r;
  }
}

TEST(FederatedAveraging, EqualsAllReduceWhenAveragedOverServers) {
  const auto problem = heterogeneous_problem(4);
  ProblemTrainingOptions options = options_of("local", "none", "none");
  options.sync.client_weights = "tokens";
  const TrainedReplicas expected = run(*problem, 4, options);
  options.sync.average_over = "servers";
  const TrainedReplicas seen = run(*problem, 4, options);
  for (size_t d = 0; d < static_cast<size_t>(kDim); ++d) EXPECT_NEAR(seen.x[2][d], expected.x[2][d], 1e-12);
  options.sync.ps.servers = 9;
  EXPECT_THROW(run(*problem, 4, options), UsageError);
}

TEST(CompressedGossip, MatchesOneProcessReferenceBitForBitAndPreservesTheMean) {
  for (const char* topology : {"ring", "exponential", "star"})
    for (const char* compress : {"topk:0.1", "int8:64", "qsgd:16:64"})
      for (const int64_t period : {0, 4}) {
        const int n = 5;
        const auto problem = heterogeneous_problem(n);
        ProblemTrainingOptions options = options_of("gossip", compress, "ef21");
        options.sync.topology = topology;
        options.sync.period = period;
        options.sync.gossip_step = 0.4;
        const auto compressor = make_compressor(compress);
        const MixingMatrix mixing = make_topology(topology, n).at(0);
        ReferenceReplicas replicas(*problem, n, options.lr);
        std::vector<Vector> estimates = replicas.x, estimate_sums = replicas.x;  // x̂ and s of each replica
        uint64_t steps = 0;
        for (int64_t k = 0; k < options.steps; ++k) {
          replicas.gradients(k);
          replicas.adapt();
          const Vector before = ReferenceReplicas::mean(replicas.x);
          if (period > 0 && (k + 1) % period == 0) {
            replicas.average();
            continue;
          }
          ++steps;
          size_t first = 0;
          for (size_t unit = 0; unit < kUnits.size(); first += kUnits[unit++]) {
            std::vector<Vector> moves;
            for (size_t i = 0; i < replicas.x.size(); ++i) {
              Vector change(kUnits[unit]);
              for (size_t d = 0; d < change.size(); ++d) change[d] = replicas.x[i][first + d] - estimates[i][first + d];
              moves.push_back(compressed(*compressor, change,
                                         {seed_of(options, unit), static_cast<uint64_t>(k), static_cast<uint32_t>(i)}));
              for (size_t d = 0; d < change.size(); ++d) estimates[i][first + d] += moves[i][d];
            }
            for (size_t i = 0; i < replicas.x.size(); ++i)
              for (size_t d = 0; d < kUnits[unit]; ++d) {
                double& s = estimate_sums[i][first + d];
                for (const NeighbourWeight& one : mixing[i])
                  if (one.weight > 0) s = s + one.weight * moves[static_cast<size_t>(one.from)][d];
                replicas.x[i][first + d] = replicas.x[i][first + d] + 0.4 * s + -0.4 * estimates[i][first + d];
              }
          }
          const Vector after = ReferenceReplicas::mean(replicas.x);
          for (size_t d = 0; d < after.size(); ++d) ASSERT_NEAR(after[d], before[d], 1e-12);
        }
        const TrainedReplicas seen = run(*problem, n, options);
        uint64_t code = 0;
        for (const size_t unit : kUnits) code += compressor->encoded_bytes(static_cast<int64_t>(unit), DType::f64);
        for (int r = 0; r < n; ++r) {
          EXPECT_TRUE(same_bits(seen.x[static_cast<size_t>(r)], replicas.x[static_cast<size_t>(r)]))
              << topology << ' ' << compress << ' ' << period << " rank " << r;
          EXPECT_EQ(seen.sent[static_cast<size_t>(r)], steps * code * out_neighbours(mixing, r).size());
        }
      }
}

// Replicas with different minimisers stay close with a compression ratio of 1/10. Up to a limit, a larger gossip step
// keeps them closer.
TEST(CompressedGossip, KeepsReplicasClose) {
  const auto problem = heterogeneous_problem(8);
  const auto apart = [&](const std::string& method, double step) {
    ProblemTrainingOptions options =
        options_of(method, method == "gossip" ? "topk:0.1" : "none", method == "gossip" ? "ef21" : "none");
    options.sync.period = 0;
    options.sync.tau = 1000;  // longer than the run, so the replicas never average
    options.sync.gossip_step = step;
    options.steps = 300;
    options.lr = 0.01;
    const TrainedReplicas seen = run(*problem, 8, options);
    const Vector mean = ReferenceReplicas::mean(seen.x);
    double sum = 0;
    for (const Vector& x : seen.x) sum += distance2(x, mean);
    return sum;
  };
  const double never = apart("local", 1), small = apart("gossip", 0.1), larger = apart("gossip", 0.3);
  EXPECT_LT(small, never / 3);
  EXPECT_LT(larger, small);
}

TEST(CompressedGossip, RejectsIncompatibleOptionsWithAReason) {
  const auto refused = [](const std::string& word, auto change) {
    Options o = options_of("gossip", "topk:0.1", "ef21").sync;
    change(o);
    try {
      check_compression(o);
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      return;
    }
    ADD_FAILURE() << word;
  };
  refused("CHOCO", [](Options& o) { o.feedback = "ef"; });
  refused("fixed graph", [](Options& o) { o.topology = "one_peer"; });
  refused("tracked", [](Options& o) { o.tracking = true; });
  refused("before they are known", [](Options& o) { o.gossip_mode = "adapt_with_combine"; });
  refused("gossip_step", [](Options& o) { o.gossip_step = 0; });
  refused("powersgd", [](Options& o) { o.compress = "powersgd", o.feedback = "none"; });
  refused("length", [](Options& o) { o.compress = "threshold:1"; });
}

}  // namespace
}  // namespace esp::sync
