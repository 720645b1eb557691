#include "esp/plan/espalier_time.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/model/model.h"
#include "esp/plan/calibrated_rates.h"
#include "esp/plan/espalier_memory.h"

namespace esp::plan {
namespace {

// A machine of two cores with `flops` FLOP/s each. Only GEMMs take time on it.
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
      for (const int rows : CalibratedRates::kRows)
        for (const int width : CalibratedRates::kWidths)
          for (const int depth : CalibratedRates::kDepths)
            m[CalibratedRates::gemm_key(way, "fp32", kind, rows, width, depth)] = rate;
    for (const char* kernel : {"add", "activation", "norm", "norm_back", "loss", "update"})
      for (const double bytes : CalibratedRates::kStreamBytes)
        m[CalibratedRates::stream_key(way, "fp32", kernel, bytes)] = kBoundless;
    for (const char* pass : {"forward", "backward"})
      for (const int tokens : CalibratedRates::kTokens)
        m[CalibratedRates::attention_key(way, "fp32", pass, tokens)] = kBoundless;
  }
  for (const char* op : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv"})
    for (const int ranks : {2, 4}) {
      m[CalibratedRates::collective_key(op, ranks, "alpha_s")] = 0;
      m[CalibratedRates::collective_key(op, ranks, "bytes_per_s")] = kBoundless;
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

TEST(EspalierTime, EqualsGemmTimeIfOnlyGemmsTakeTime) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  const Cluster cluster = even_machine(1e9);
  const double best = products_s(shape, of(1, 1, 1, 16), 2e9);
  EXPECT_NEAR(espalier_estimate(shape, cluster, of(1, 1, 1, 16)).step_s, best, 1e-6 * best);
  // The total work does not depend on the layout: two ranks on two cores take as long as four ranks that share them.
  for (const Policy& p : {of(1, 1, 2, 8), of(1, 1, 4, 4), of(2, 1, 1, 16), of(2, 1, 2, 8), of(4, 1, 1, 16)})
    EXPECT_NEAR(espalier_estimate(shape, cluster, p).step_s, best, 1e-6 * best) << p.tp << p.dp;
}

TEST(EspalierTime, PipelineBubbleShrinksIfStagesShareCores) {
  ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  shape.layers = 8;
  const Cluster cluster = even_machine(1e9);
  const double best = products_s(shape, of(1, 1, 1, 16), 2e9);
  const double two = espalier_estimate(shape, cluster, of(1, 2, 1, 2)).step_s,
               four = espalier_estimate(shape, cluster, of(1, 4, 1, 2)).step_s;
  EXPECT_GT(two, 1.08 * best);  // two stages with eight micro-batches have a bubble of 1/8
  EXPECT_LT(two, 1.2 * best);
  EXPECT_LT(four, 1.2 * best);  // with four stages, two are busy at most times, which is enough to keep two cores busy
}

TEST(EspalierTime, ErrorNamesMissingMeasurement) {
  Cluster cluster = even_machine(1e9);
  EXPECT_TRUE(uses_calibrated_rates(cluster, of(1, 1, 1, 16)));
  cluster.measured.erase("step_s");
  const ModelShape shape = shape_of(model::preset("gpt-tiny").config, "gpt");
  try {
    espalier_estimate(shape, cluster, of(1, 1, 1, 16));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("step_s"), std::string::npos) << error.what();
  }
  cluster.measured.clear();
  EXPECT_FALSE(uses_calibrated_rates(cluster, of(1, 1, 1, 16)));
}

TEST(EspalierMemory, StateBytesMatchShardingOfZeroStage) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  const double all = shape.parameters();
  Policy p = of(1, 1, 4, 4);
  // [ZeRO stage][parameter, gradient, optimizer]: bytes per parameter on one of four ranks
  const double per[4][3] = {{4, 4, 8}, {4, 4, 2}, {4, 1, 2}, {1, 1, 2}};
  for (p.zero = 0; p.zero <= 3; ++p.zero) {
    const Memory m = espalier_memory(shape, p);
    EXPECT_NEAR(m.parameter, per[p.zero][0] * all, 1e-4 * all) << p.zero;
    EXPECT_NEAR(m.gradient, per[p.zero][1] * all, 1e-4 * all) << p.zero;
    EXPECT_NEAR(m.optimizer, per[p.zero][2] * all, 1e-4 * all) << p.zero;
  }
}

TEST(EspalierMemory, PeakDecreasesWithRecomputation) {
  const ModelShape shape = shape_of(model::preset("gpt-6x384").config, "gpt");
  Policy p = of(1, 1, 1, 16);
  const double none = espalier_memory(shape, p).activation;
  p.recompute = RecomputePolicy::selective;
  const double selective = espalier_memory(shape, p).activation;
  p.recompute = RecomputePolicy::full;
  EXPECT_LT(selective, none);
  EXPECT_LT(espalier_memory(shape, p).activation, selective);
}

}  // namespace
}  // namespace esp::plan
