#include "esp/sync/compress/error_feedback.h"

#include <mutex>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/sync/compress/reference_feedback.h"

namespace esp::sync {
namespace {

constexpr uint64_t kSeed = 31;

// A test problem: one function per worker, given by its gradient, in f64.
struct TestProblem {
  int workers;
  size_t dimension;
  std::function<Values<double>(int worker, const Values<double>& x)> gradient;
  Values<double> start, minimum;
};

// The counterexample of Beznosikov et al. 2020: f_i = ⟨a_i, x⟩² + ¼‖x‖².
TestProblem divergence_problem() {
  return {3,
          3,
          [](int worker, const Values<double>& x) {
            double a[3] = {2, 2, 2}, dot = 0;
            a[worker] = -3;
            for (size_t j = 0; j < 3; ++j) dot += a[j] * x[j];
            Values<double> g(3);
            for (size_t j = 0; j < 3; ++j) g[j] = 2 * dot * a[j] + 0.5 * x[j];
            return g;
          },
          {1, 1, 1},
          {0, 0, 0}};
}

// f_i = ½Σ d_ij(x_j − b_ij)²: each worker has a different minimiser.
TestProblem heterogeneous_problem() {
  auto curve = [](int i, size_t j) { return 0.5 + random_unit(1, static_cast<uint64_t>(i), j); };
  auto place = [](int i, size_t j) { return 4 * random_unit(2, static_cast<uint64_t>(i), j) - 2; };
  TestProblem problem{4, 16,
                      [=](int worker, const Values<double>& x) {
                        Values<double> g(16);
                        for (size_t j = 0; j < 16; ++j) g[j] = curve(worker, j) * (x[j] - place(worker, j));
                        return g;
                      },
                      Values<double>(16, 3.0), Values<double>(16)};
  for (size_t j = 0; j < 16; ++j) {
    double weight = 0, sum = 0;
    for (int i = 0; i < 4; ++i) weight += curve(i, j), sum += curve(i, j) * place(i, j);
    problem.minimum[j] = sum / weight;
  }
  return problem;
}

struct Descent {
  std::string compressor, feedback;
  AggregationMethod method = AggregationMethod::gather;
  double gamma = 0.02;
  int steps = 100;
  // true: the step size is multiplied into the vector before compression, so the stored residual contains it
  bool inside() const { return feedback == "ef"; }
};

void advance(Values<double>& x, const Values<double>& out, const Descent& descent) {
  for (size_t j = 0; j < x.size(); ++j) x[j] -= descent.inside() ? out[j] : descent.gamma * out[j];
}

Values<double> to_send(const TestProblem& problem, int worker, const Values<double>& x, const Descent& descent) {
  Values<double> g = problem.gradient(worker, x);
  if (descent.inside())
    for (double& v : g) v *= descent.gamma;
  return g;
}

using Path = std::vector<Values<double>>;

Path emulated(const TestProblem& problem, const Descent& descent) {
  const auto compressor = make_compressor(descent.compressor);
  ReferenceFeedback<double> all(*compressor, descent.method, problem.workers, problem.dimension, kSeed,
                                1.0 / problem.workers);
  Path path{problem.start};
  for (int step = 0; step < descent.steps; ++step) {
    std::vector<Values<double>> g;
    for (int i = 0; i < problem.workers; ++i) g.push_back(to_send(problem, i, path.back(), descent));
    path.push_back(path.back());
    advance(path.back(), all.run(descent.feedback, g), descent);
  }
  return path;
}

AggregationSetup sum_setup(comm::Communicator* comm, RankResources& place, const Compressor& compressor, size_t n,
                           DType dtype) {
  AggregationSetup sum;
  sum.ranks = comm;
  sum.context = place.context;
  sum.compressor = &compressor;
  sum.count = static_cast<int64_t>(n);
  sum.dtype = dtype;
  sum.seed = kSeed;
  sum.ordered = true;
  return sum;
}

// Runs the descent on real ranks, checks that all ranks have the same path, and returns it.
Path by_ranks(const TestProblem& problem, const Descent& descent) {
  const auto compressor = make_compressor(descent.compressor);
  std::vector<Path> paths(static_cast<size_t>(problem.workers));
  with_ranks_of(problem.workers, [&](comm::Communicator& comm) {
    RankResources place;
    const auto feedback = make_feedback(
        descent.feedback, {sum_setup(&comm, place, *compressor, problem.dimension, DType::f64), {}, descent.method});
    Path path{problem.start};
    Values<double> out(problem.dimension);
    for (int step = 0; step < descent.steps; ++step) {
      const Values<double> g = to_send(problem, comm.rank(), path.back(), descent);
      feedback->exchange(out.data(), g.data());
      path.push_back(path.back());
      advance(path.back(), out, descent);
    }
    paths[static_cast<size_t>(comm.rank())] = std::move(path);
  });
  for (const Path& path : paths) EXPECT_EQ(path, paths[0]);
  return paths[0];
}

double distance(const Values<double>& a, const Values<double>& b) {
  return std::sqrt(distance2(a, b));
}

TEST(Divergence, IteratesGrowByElevenSixthsOfStepSizeWithTopOneWithoutFeedback) {
  const Descent plain{"topk:1", "none", AggregationMethod::gather, 0.02, 50};
  const Path path = by_ranks(divergence_problem(), plain);
  EXPECT_EQ(path, emulated(divergence_problem(), plain));
  for (size_t step = 1; step < path.size(); ++step)
    for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(path[step][j] / path[step - 1][j], 1 + 11 * 0.02 / 6, 1e-13) << step;
}

TEST(Divergence, FeedbackReachesTheMinimum) {
  for (const char* feedback : {"ef", "doublesqueeze", "ef21", "neolithic:2"}) {
    const Descent descent{"topk:1", feedback, AggregationMethod::gather, 0.02, 1500};
    const Path path = emulated(divergence_problem(), descent);
    EXPECT_LT(std::sqrt(norm2(path.back())), 1e-12) << feedback;
    EXPECT_EQ(by_ranks(divergence_problem(), descent), path) << feedback;
  }
}

// Mean distance to the minimum over the last steps of the path.
double floor_of(const Path& path, const TestProblem& problem) {
  double sum = 0;
  for (size_t back = 1; back <= 500; ++back) sum += distance(path[path.size() - back], problem.minimum);
  return sum / 500;
}

TEST(Heterogeneity, ErrorFeedbackStopsAtADistanceProportionalToTheStepSize) {
  const TestProblem problem = heterogeneous_problem();
  for (const char* feedback : {"ef", "doublesqueeze"}) {
    const double whole =
        floor_of(emulated(problem, {"topk:2", feedback, AggregationMethod::gather, 0.01, 4000}), problem);
    const double half =
        floor_of(emulated(problem, {"topk:2", feedback, AggregationMethod::gather, 0.005, 8000}), problem);
    EXPECT_GT(half, 1e-4) << feedback;
    EXPECT_NEAR(whole / half, 2, 0.3) << feedback;
  }
}

TEST(Heterogeneity, Ef21ReachesTheMinimumAndMoreNeolithicRoundsComeCloser) {
  const TestProblem problem = heterogeneous_problem();
  EXPECT_LT(
      distance(emulated(problem, {"topk:2", "ef21", AggregationMethod::gather, 0.02, 6000}).back(), problem.minimum),
      1e-12);
  double before = 1e9;
  for (int rounds : {1, 2, 4}) {
    const std::string spec = fmt::format("neolithic:{}", rounds);
    const double floor = floor_of(emulated(problem, {"topk:2", spec, AggregationMethod::gather, 0.01, 4000}), problem);
    EXPECT_LT(floor, before) << rounds;
    before = floor;
  }
}

TEST(Feedback, MatchesOneProcessReferenceBitForBit) {
  const TestProblem problem = heterogeneous_problem();
  for (const char* compressor :
       {"identity", "topk:2", "randomk:0.25:unscaled", "sign", "onebit", "int8:16", "int4:16:stochastic", "qsgd:4:8",
        "natural", "random:-9,-3,-1,0,1,3,9", "threshold:0.5"})
    for (const char* feedback : {"none", "ef", "doublesqueeze", "ef21", "neolithic:3"})
      for (AggregationMethod method :
           {AggregationMethod::sum, AggregationMethod::gather, AggregationMethod::two_phase}) {
        if (!is_supported(method, *make_compressor(compressor), 16, DType::f64, 4)) continue;
        if (method == AggregationMethod::two_phase && !find_feedback(feedback).two_phase) continue;
        const Descent descent{compressor, feedback, method, 0.02, 12};
        EXPECT_EQ(by_ranks(problem, descent), emulated(problem, descent))
            << compressor << ' ' << feedback << ' ' << name_of(method);
      }
}

TEST(Feedback, EqualsGradientDescentWithIdentityCompressor) {
  const TestProblem problem = heterogeneous_problem();
  Path plain{problem.start};
  for (int step = 0; step < 60; ++step) {
    Values<double> sum(16);
    for (int i = 0; i < 4; ++i) {
      const Values<double> g = problem.gradient(i, plain.back());
      for (size_t j = 0; j < 16; ++j) sum[j] = i ? sum[j] + g[j] : g[j];
    }
    plain.push_back(plain.back());
    for (size_t j = 0; j < 16; ++j) plain.back()[j] -= 0.02 * (sum[j] * 0.25);
  }
  for (AggregationMethod method : {AggregationMethod::sum, AggregationMethod::gather, AggregationMethod::two_phase})
    for (const char* feedback : {"none", "doublesqueeze", "neolithic:1"})
      EXPECT_EQ(by_ranks(problem, {"identity", feedback, method, 0.02, 60}), plain) << feedback;
  for (const char* feedback : {"ef", "ef21"}) {
    const Path path = by_ranks(problem, {"identity", feedback, AggregationMethod::gather, 0.02, 60});
    for (size_t step = 0; step < path.size(); ++step) EXPECT_LT(distance(path[step], plain[step]), 1e-13) << feedback;
  }
}

TEST(Feedback, NeolithicWithOneRoundEqualsDoubleSqueeze) {
  const TestProblem problem = heterogeneous_problem();
  EXPECT_EQ(by_ranks(problem, {"topk:2", "neolithic:1", AggregationMethod::two_phase, 0.02, 20}),
            by_ranks(problem, {"topk:2", "doublesqueeze", AggregationMethod::two_phase, 0.02, 20}));
}

// x minus the mean stored residual must equal the iterate of gradient descent with the exact mean gradients.
TEST(Feedback, KeepsTheUnsentResidual) {
  const TestProblem problem = heterogeneous_problem();
  for (const char* compressor : {"topk:2", "sign", "int4:16"})
    for (const char* feedback : {"ef", "doublesqueeze", "neolithic:2"})
      for (AggregationMethod method : {AggregationMethod::gather, AggregationMethod::two_phase}) {
        if (method == AggregationMethod::two_phase && !find_feedback(feedback).two_phase) continue;
        const Descent descent{compressor, feedback, method, 0.02, 40};
        const auto made = make_compressor(compressor);
        ReferenceFeedback<double> all(*made, method, 4, 16, kSeed, 0.25);
        Values<double> x = problem.start, shadow = x;
        for (int step = 0; step < descent.steps; ++step) {
          std::vector<Values<double>> g;
          for (int i = 0; i < 4; ++i) {
            const Values<double> exact = problem.gradient(i, x);
            for (size_t j = 0; j < 16; ++j) shadow[j] -= 0.02 * exact[j] / 4;
            g.push_back(to_send(problem, i, x, descent));
          }
          advance(x, all.run(feedback, g), descent);
          const double unit = descent.inside() ? 1 : descent.gamma;
          for (size_t j = 0; j < 16; ++j) {
            double kept = all.server_error[j];
            for (const auto& error : all.errors) kept += error[j] / 4;
            ASSERT_NEAR(x[j] - unit * kept, shadow[j], 1e-12) << compressor << ' ' << feedback;
          }
        }
      }
}

TEST(Ef21, RunningMeanEqualsTheMeanOfTheEstimates) {
  const TestProblem problem = heterogeneous_problem();
  const auto compressor = make_compressor("topk:2");
  ReferenceFeedback<double> all(*compressor, AggregationMethod::gather, 4, 16, kSeed, 0.25);
  Values<double> x = problem.start;
  for (int step = 0; step < 200; ++step) {
    std::vector<Values<double>> g;
    for (int i = 0; i < 4; ++i) g.push_back(problem.gradient(i, x));
    advance(x, all.ef21(g), {"topk:2", "ef21"});
    for (size_t j = 0; j < 16; ++j) {
      double mean = 0;
      for (const auto& estimate : all.estimates) mean += estimate[j] / 4;
      ASSERT_NEAR(mean, all.mean_estimate[j], 1e-12);
    }
  }
}

Values<float> alone(const std::string& compressor, const std::string& feedback, const Values<float>& g) {
  RankResources place;
  const auto made = make_compressor(compressor);
  const auto it =
      make_feedback(feedback, {sum_setup(nullptr, place, *made, g.size(), DType::f32), {}, AggregationMethod::gather});
  Values<float> out(g.size());
  it->exchange(out.data(), g.data());
  return out;
}

TEST(Neolithic, TopKInRRoundsEqualsOneRoundWithRTimesK) {
  const Values<float> g = normal_values(500, 3);
  for (int k : {1, 5, 20})
    for (int rounds : {1, 2, 4})
      EXPECT_TRUE(same_bits(alone(fmt::format("topk:{}", k), fmt::format("neolithic:{}", rounds), g),
                            compressed(*make_compressor(fmt::format("topk:{}", k * rounds)), g)));
}

TEST(Neolithic, ResidualShrinksGeometricallyWithRounds) {
  const Values<float> g = normal_values(400, 4);
  for (const char* spec : {"topk:20", "sign", "onebit", "int4:16"}) {
    const auto compressor = make_compressor(spec);
    const double left = 1 - compressor->guarantee(400).delta.value();
    Values<float> rest = g;
    for (int round = 1; round <= 6; ++round) {
      const Values<float> sent = compressed(*compressor, rest);
      for (size_t i = 0; i < rest.size(); ++i) rest[i] -= sent[i];
      EXPECT_LE(norm2(rest), std::pow(left, round) * norm2(g) * (1 + 1e-6)) << spec << ' ' << round;
    }
  }
}

TEST(Feedback, SendsTheBytesOfItsAggregationMethod) {
  for (const char* spec : {"topk:0.1", "sign", "int8:64", "randomk:0.1:unscaled"})
    for (const char* feedback : {"ef", "doublesqueeze", "ef21", "neolithic:2"})
      with_ranks_of(4, [&](comm::Communicator& comm) {
        RankResources place;
        const auto compressor = make_compressor(spec);
        const auto it = make_feedback(feedback, {sum_setup(&comm, place, *compressor, 1001, DType::f32), {}, {}});
        const AggregationMethod method =
            cheapest_method(*compressor, 1001, DType::f32, 4, {find_feedback(feedback).two_phase});
        const Values<float> g = normal_values(1001, static_cast<uint64_t>(comm.rank()));
        Values<float> out(g.size());
        for (int step = 0; step < 3; ++step) it->exchange(out.data(), g.data());
        const uint64_t rounds = std::string(feedback) == "neolithic:2" ? 2 : 1;
        EXPECT_EQ(bytes_sent_by(comm), 3 * rounds * bytes_sent(method, *compressor, 1001, DType::f32, 4, comm.rank()))
            << spec << ' ' << feedback << ' ' << name_of(method);
      });
}

TEST(Feedback, ResumesFromItsState) {
  RankResources place;
  const auto compressor = make_compressor("int4:16:stochastic");
  const auto setup =
      FeedbackSetup{sum_setup(nullptr, place, *compressor, 64, DType::f32), {}, AggregationMethod::gather};
  for (const FeedbackRow& row : feedbacks()) {
    const auto first = make_feedback(row.name, setup), second = make_feedback(row.name, setup);
    Values<float> out(64), again(64);
    for (uint64_t step = 0; step < 3; ++step) first->exchange(out.data(), normal_values(64, step).data());
    for (size_t i = 0; i < first->state().size(); ++i) {
      const tensor::Tensor from = first->state()[i].values, to = second->state()[i].values;
      std::memcpy(to.data(), from.data(), from.bytes());
    }
    first->exchange(out.data(), normal_values(64, 9).data());
    second->exchange(again.data(), normal_values(64, 9).data());
    EXPECT_TRUE(same_bits(out, again)) << row.name;
  }
}

TEST(Feedback, RejectsInvalidSpecsAndDivergentPairs) {
  RankResources place;
  const auto top = make_compressor("topk:2");
  FeedbackSetup setup{sum_setup(nullptr, place, *top, 16, DType::f32), {}, AggregationMethod::two_phase};
  EXPECT_THROW(make_feedback("ef", setup), UsageError);
  EXPECT_THROW(make_feedback("neolithic:0", setup), UsageError);
  EXPECT_THROW(make_feedback("ef:2", setup), UsageError);
  EXPECT_THROW(make_feedback("eff", setup), UsageError);
  auto objects = [](const char* compressor, const char* feedback) {
    return !divergence_reason(*make_compressor(compressor), feedback, 1000).empty();
  };
  EXPECT_TRUE(objects("topk:0.01", "none"));
  EXPECT_TRUE(objects("sign", "none"));
  EXPECT_TRUE(objects("randomk:0.01", "ef"));
  EXPECT_TRUE(objects("qsgd:1", "doublesqueeze"));
  EXPECT_FALSE(objects("qsgd:1", "none"));
  EXPECT_FALSE(objects("qsgd:64", "ef"));
  EXPECT_FALSE(objects("int8", "none"));
  EXPECT_FALSE(objects("bf16", "none"));
  EXPECT_FALSE(objects("topk:0.01", "ef"));
  EXPECT_FALSE(objects("randomk:0.01:unscaled", "ef21"));
}

}  // namespace
}  // namespace esp::sync
