#include "esp/plan/own_time.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/model/model.h"
#include "esp/plan/own_memory.h"
#include "esp/plan/own_rates.h"

namespace esp::plan {
namespace {

// A machine of two cores, each of `flops`, on which only GEMMs take time.
Cluster even_machine(double flops) {
  Cluster c;
  c.name = "even";
  c.processor.kind = "cpu";
  c.processor.fp32_flops = 2 * flops;
  auto& m = c.measured;
  m["cores"] = 2;
  m["step_s"] = 0;
  constexpr double kBoundless = 1e30;
  for (const char* way : {"whole", "shared"}) {
    const double rate = way[0] == 'w' ? 2 * flops : flops;
    m[std::string(way) + ".kernel_s"] = 0;
    for (const char* kind : {"forward", "input", "weight"})
      for (const int rows : OwnRates::kRows)
        for (const int width : OwnRates::kWidths)
          for (const int depth : OwnRates::kDepths)
            m[OwnRates::product_key(way, "fp32", kind, rows, width, depth)] = rate;
    for (const char* kernel : {"add", "activation", "norm", "norm_back", "loss", "update"})
      for (const double bytes : OwnRates::kStreamBytes)
        m[OwnRates::stream_key(way, "fp32", kernel, bytes)] = kBoundless;
    for (const char* pass : {"forward", "backward"})
      for (const int tokens : OwnRates::kTokens) m[OwnRates::attention_key(way, "fp32", pass, tokens)] = kBoundless;
  }
  for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"})
    for (const int ranks : {2, 4}) {
      m[OwnRates::collective_key(op, ranks, "alpha_s")] = 0;
      m[OwnRates::collective_key(op, ranks, "bytes_per_s")] = kBoundless;
    }
  return c;
}

Policy of(int tp, int pp, int dp, int64_t micro_batch) {
  Policy p;
  p.tp = tp, p.pp = pp, p.dp = dp;
  p.global_batch = 16;
  p.micro_batch = micro_batch;
  p.precision = "fp32";
  p.software = "espalier";
  return p;
}

double products_s(const ModelShape& s, const Policy& p, double flops_of_machine) {
  const double matrices = static_cast<double>(s.layers) * 12 * static_cast<double>(s.hidden * s.hidden) +
                          static_cast<double>(s.vocab * s.hidden);
  return 6 * matrices * static_cast<double>(p.global_batch * s.seq) / flops_of_machine;
}

TEST(OwnTime, EqualsTheGemmTimeWhereNothingElseTakesTime) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  const Cluster cluster = even_machine(1e9);
  const double best = products_s(shape, of(1, 1, 1, 16), 2e9);
  EXPECT_NEAR(own_estimate(shape, cluster, of(1, 1, 1, 16)).step_s, best, 1e-6 * best);
  // The work of the cores is independent of its division: two ranks, or four that share cores.
  for (const Policy& p : {of(1, 1, 2, 8), of(1, 1, 4, 4), of(2, 1, 1, 16), of(2, 1, 2, 8), of(4, 1, 1, 16)})
    EXPECT_NEAR(own_estimate(shape, cluster, p).step_s, best, 1e-6 * best) << p.tp << p.dp;
}

TEST(OwnTime, PipelineBubbleShrinksOnSharedCores) {
  ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  shape.layers = 8;
  const Cluster cluster = even_machine(1e9);
  const double best = products_s(shape, of(1, 1, 1, 16), 2e9);
  const double two = own_estimate(shape, cluster, of(1, 2, 1, 2)).step_s,
               four = own_estimate(shape, cluster, of(1, 4, 1, 2)).step_s;
  EXPECT_GT(two, 1.08 * best);  // eight micro-batches over two stages: 1/8
  EXPECT_LT(two, 1.2 * best);
  EXPECT_LT(four, 1.2 * best);  // two of four stages keep two cores busy most of the time
}

TEST(OwnTime, ReportsTheMissingMeasurement) {
  Cluster cluster = even_machine(1e9);
  EXPECT_TRUE(is_own(cluster, of(1, 1, 1, 16)));
  cluster.measured.erase("step_s");
  const ModelShape shape = shape_of(model::preset("gpt-tiny").config, "gpt");
  try {
    own_estimate(shape, cluster, of(1, 1, 1, 16));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("step_s"), std::string::npos) << error.what();
  }
  cluster.measured.clear();
  EXPECT_FALSE(is_own(cluster, of(1, 1, 1, 16)));
}

TEST(OwnMemory, ShardsStatesAsTheStagesDo) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  const double all = shape.parameters();
  Policy p = of(1, 1, 4, 4);
  const double per[4][3] = {{4, 4, 8}, {4, 4, 2}, {4, 1, 2}, {1, 1, 2}};  // bytes per parameter by stage
  for (p.zero = 0; p.zero <= 3; ++p.zero) {
    const Memory m = own_memory(shape, p);
    EXPECT_NEAR(m.parameter, per[p.zero][0] * all, 1e-4 * all) << p.zero;
    EXPECT_NEAR(m.gradient, per[p.zero][1] * all, 1e-4 * all) << p.zero;
    EXPECT_NEAR(m.optimizer, per[p.zero][2] * all, 1e-4 * all) << p.zero;
  }
}

TEST(OwnMemory, FallsWithRecomputation) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  Policy p = of(1, 1, 1, 16);
  const double none = own_memory(shape, p).activation;
  p.recompute = RecomputePolicy::selective;
  const double selective = own_memory(shape, p).activation;
  p.recompute = RecomputePolicy::full;
  EXPECT_LT(selective, none);
  EXPECT_LT(own_memory(shape, p).activation, selective);
}

}  // namespace
}  // namespace esp::plan
