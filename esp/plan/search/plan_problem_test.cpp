#include "esp/plan/search/plan_problem.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/parallel/pp/partition.h"
#include "esp/plan/catalog.h"
#include "esp/plan/search/explain.h"
#include "esp/plan/search/methods.h"
#include "esp/plan/search/nearest_miss.h"
#include "esp/plan/search/random_choice.h"

namespace esp::plan {
namespace {

ModelShape gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq = 2048) {
  ModelShape s;
  s.name = "gpt";
  s.layers = layers;
  s.hidden = hidden;
  s.ffn = 4 * hidden;
  s.heads = s.kv_heads = heads;
  s.head_dim = hidden / heads;
  s.vocab = 51200;
  s.seq = seq;
  return s;
}

ModelShape llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab,
                 int64_t seq) {
  ModelShape s = gpt(layers, hidden, heads, seq);
  s.name = s.arch = "llama";
  s.kv_heads = kv_heads;
  s.ffn = ffn;
  s.vocab = vocab;
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
  return s;
}

ModelShape mixture() {
  ModelShape s = llama(24, 2048, 16, 8, 5632, 32000, 4096);
  s.experts = 8;
  s.topk = 2;
  s.expert_ffn = 5632;
  return s;
}

// A search space on which every method is tested: a model, a cluster, a number of processors and a batch.
struct Reference {
  const char* name;
  ModelShape shape;
  const char* cluster;
  int gpus;
  int64_t global_batch;
  const char* objective;
};

std::vector<Reference> references() {
  return {{"gpt 1.3B on 16 A100", gpt(24, 2048, 16), "dgx-a100", 16, 64, "time"},
          {"gpt 1.3B on 16 A100 by memory", gpt(24, 2048, 16), "dgx-a100", 16, 64, "memory"},
          {"llama 7B on 32 H100", llama(32, 4096, 32, 32, 11008, 32000, 4096), "dgx-h100", 32, 128, "time"},
          {"llama 8B vocab 128k on 24 H100", llama(32, 4096, 32, 8, 14336, 128256, 8192), "dgx-h100", 24, 96, "time"},
          {"llama 13B seq 32k on 16 H200", llama(40, 5120, 40, 8, 13824, 32000, 32768), "dgx-h200", 16, 16, "time"},
          {"gpt 18B on 64 V100, goodput", gpt(40, 6144, 48), "dgx-1", 64, 256, "goodput"},
          {"mixture of 8 experts on 16 H100", mixture(), "dgx-h100", 16, 64, "time"},
          {"gpt 175B on 96 A100, barely fits", gpt(96, 12288, 96), "dgx-a100", 96, 96, "cost"}};
}

SearchSpace narrowed(const Reference& r, const Cluster& cluster) {
  Policy base;
  base.global_batch = r.global_batch;
  if (cluster.processor.bf16_flops == 0) base.precision = "fp16";
  SearchSpace space = full_search_space(r.shape, cluster, base, {r.gpus});
  // Keeps enough values per axis to find errors, but few enough to enumerate all choices.
  std::erase_if(space.micro_batch, [](int64_t b) { return b > 4; });
  std::erase_if(space.cp, [&](int n) { return n > (r.shape.seq > 8192 ? 4 : 2); });
  restrict_axis(space, "schedule=1f1b,interleaved:2,zb-h1,v-half");
  restrict_axis(space, "context=ring,ulysses");
  return space;
}

PlanProblem problem_of(const Reference& r) {
  const Cluster cluster = resize_cluster(built_in_catalog().cluster(r.cluster), r.gpus);
  return PlanProblem(r.shape, cluster, narrowed(r, cluster), objective(r.objective));
}

TEST(PlanSearch, AllMethodsReachTheExhaustiveOptimumOfTheReferenceSpaces) {
  for (const Reference& r : references()) {
    const Cluster cluster = resize_cluster(built_in_catalog().cluster(r.cluster), r.gpus);
    const PlanProblem problem(r.shape, cluster, narrowed(r, cluster), objective(r.objective));
    const SearchResult all = search_exhaustive(problem, {});
    ASSERT_TRUE(all.found()) << r.name;
    for (const SearchMethod& method : search_methods()) {
      const SearchResult result = method.run(problem, {});
      ASSERT_TRUE(result.found()) << r.name << ' ' << method.name;
      EXPECT_NEAR(result.best().value, all.best().value, 1e-9 * all.best().value)
          << r.name << ' ' << method.name << ": " << problem.text_of(result.best().choice) << " against "
          << problem.text_of(all.best().choice);
      EXPECT_LE(result.counts.evaluated, result.counts.considered);
      if (method.exact) {
        EXPECT_EQ(result.best().choice, all.best().choice) << r.name << ' ' << method.name;
      }
    }
  }
}

// Branch and bound needs this: the lower bounds of every prefix of a choice are at most the choice's time and memory.
TEST(PlanSearch, LowerBoundsNeverExceedTimeAndMemory) {
  for (const Reference& r : references()) {
    const Cluster cluster = resize_cluster(built_in_catalog().cluster(r.cluster), r.gpus);
    const PlanProblem problem(r.shape, cluster, narrowed(r, cluster), objective(r.objective));
    RuleCache rules(problem);
    RandomStream random(11, 0);
    double tightest = 0;
    for (int i = 0; i < 400; ++i) {
      Choice choice;
      ASSERT_TRUE(random_choice(rules, choice, random));
      const ChoiceMemory memory = problem.choice_memory(choice);
      const ChoiceValue choice_value = problem.choice_value(choice);
      double before = 0;
      for (size_t n = 1; n <= problem.num_axes(); ++n) {
        const ChoiceValue lower_bound =
            problem.lower_bound(choice, n, n == problem.num_axes() ? memory.memory_bytes : 0);
        EXPECT_LE(lower_bound.value, choice_value.value * (1 + 1e-9))
            << r.name << ' ' << problem.text_of(choice) << " axis " << n;
        EXPECT_GE(lower_bound.time_s, before * (1 - 1e-9)) << r.name << " axis " << n;
        before = lower_bound.time_s;
        EXPECT_LE(problem.least_memory(choice, n).memory_bytes, memory.memory_bytes) << problem.text_of(choice);
      }
      EXPECT_LE(problem.division_lower_bound(choice, memory.memory_bytes), choice_value.value * (1 + 1e-9))
          << problem.text_of(choice);
      tightest = std::max(tightest, before / choice_value.time_s);
    }
    EXPECT_GT(tightest, 0.5) << r.name;  // the bounds must be tight enough to prune
  }
}

// With six layers, the division that the search finds equals the best of all divisions.
TEST(PlanSearch, BalancedDivisionIsOptimal) {
  Reference r{"", llama(6, 2048, 16, 16, 5632, 256000, 2048), "dgx-a100", 8, 32, "time"};
  const Cluster cluster = resize_cluster(built_in_catalog().cluster(r.cluster), r.gpus);
  SearchSpace space = narrowed(r, cluster);
  for (const char* one :
       {"pp=2,4", "tp=1", "cp=1", "schedule=1f1b", "micro_batch=1", "zero=1", "recompute=none", "offload=none"})
    restrict_axis(space, one);
  const PlanProblem problem(r.shape, cluster, space, objective("time"));
  const SearchResult result = search_exhaustive(problem, {});
  ASSERT_TRUE(result.found());
  Policy best = problem.policy_at(result.best().choice);
  ASSERT_FALSE(best.stage_layers.empty());
  double least = kNever;
  for (const int pp : {2, 4}) {
    Policy policy = best;
    policy.pp = pp;
    policy.dp = 8 / pp;
    for (int a = 1; a <= 5; ++a)
      for (int b = 1; b <= 5; ++b)
        for (int c = 1; c <= 5; ++c) {
          policy.stage_layers = pp == 2 ? std::vector<int>{a, 6 - a} : std::vector<int>{a, b, c, 6 - a - b - c};
          if (pp == 4 && a + b + c >= 6) continue;
          least = std::min(least, estimate(r.shape, cluster, policy).step_s);
        }
  }
  EXPECT_NEAR(result.best().time_s, least, 1e-9 * least);
}

TEST(PlanSearch, FewerDevicesCostLessWhenScalingIsPoor) {
  const ModelShape shape = gpt(24, 2048, 16);
  const Cluster cluster = resize_cluster(built_in_catalog().cluster("dgx-a100"), 64);
  Policy base;
  base.global_batch = 64;
  SearchSpace space = full_search_space(shape, cluster, base, {8, 16, 64});
  restrict_axis(space, "schedule=1f1b");
  const PlanProblem by_time(shape, cluster, space, objective("time")),
      by_cost(shape, cluster, space, objective("cost"));
  const Choice fast = search_integer(by_time, {.top = 1}).best().choice,
               cheap = search_integer(by_cost, {.top = 1}).best().choice;
  EXPECT_EQ(by_time.policy_at(fast).world(), 64);
  EXPECT_LT(by_cost.policy_at(cheap).world(), 64);
}

TEST(PlanSearch, ExplanationListsLimitsAndAlternatives) {
  const std::vector<Reference> all = references();
  const Reference& tight = all.back();
  const PlanProblem& problem = problem_of(tight);
  const Choice best = search_integer(problem, {.top = 1}).best().choice;
  const Explanation why = explain(problem, best);
  double time = 0;
  for (const CostShare& one : why.time) time += one.fraction;
  EXPECT_NEAR(time, 1, 0.02);
  ASSERT_FALSE(why.limits.empty());
  // the largest part of the step must be the first limit
  EXPECT_TRUE(why.limits[0].starts_with(why.time[0].name)) << why.limits[0];
  // A change of one axis must not improve the best choice.
  bool too_large = false;
  for (const Alternative& one : why.alternatives) {
    EXPECT_FALSE(one.fits && one.change < -1e-9) << one.axis << ' ' << one.to;
    too_large = too_large || !one.fits;
  }
  EXPECT_GE(why.alternatives.size(), 5u);
  for (const Sensitivity& one : why.sensitivities)
    if (one.figure == "arithmetic rate") {
      EXPECT_LT(one.elasticity, -0.1);
    }
  EXPECT_NE(to_text(why).find("What limits it"), std::string::npos);
}

TEST(PlanSearch, ReportsPolicyWithLeastMemoryIfNothingFits) {
  const Cluster cluster = resize_cluster(built_in_catalog().cluster("dgx-a100"), 8);
  Policy base;
  base.global_batch = 8;
  SearchSpace space = full_search_space(gpt(96, 12288, 96), cluster, base, {8});
  restrict_axis(space, "offload=none");
  const PlanProblem problem(gpt(96, 12288, 96), cluster, space, objective("time"));
  EXPECT_FALSE(search_integer(problem, {}).found());
  const NearestMiss miss = nearest_miss(problem);
  ASSERT_TRUE(miss.found);
  EXPECT_GT(miss.memory_bytes, cluster.processor.memory_bytes);
}

TEST(SearchSpace, RestrictsAxesAndListsTheirValues) {
  Policy base;
  base.global_batch = 8;
  SearchSpace space =
      full_search_space(gpt(24, 2048, 16), resize_cluster(built_in_catalog().cluster("dgx-a100"), 8), base, {8});
  restrict_axis(space, "tp=2,4");
  EXPECT_EQ(space.tp, (std::vector<int>{2, 4}));
  const auto message = [&](const char* text) -> std::string {
    try {
      restrict_axis(space, text);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("tp=3").find("2, 4"), std::string::npos);
  EXPECT_NE(message("tpp=2").find("did you mean \"tp\""), std::string::npos);
  EXPECT_NE(message("recompute=ful").find("full"), std::string::npos);
  EXPECT_NE(message("tp").find("name=value"), std::string::npos);
  EXPECT_THROW(full_search_space(gpt(24, 2048, 16), {}, base, {}), UsageError);
  EXPECT_THROW(full_search_space(gpt(24, 2048, 16), {}, base, {0}), UsageError);
}

}  // namespace
}  // namespace esp::plan
