#include "esp/plan/kernels.h"

#include <gtest/gtest.h>

#include "esp/plan/catalog.h"

namespace esp::plan {
namespace {

ProcessorRates a100() {
  return processor_rates(built_in_catalog().processor("A100-80GB-SXM").processor, "bf16");
}

double rate_of(const ProcessorRates& rates, const Gemm& p) {
  return 2 * p.batch * p.m * p.n * p.k / gemm_s(rates, p);
}

TEST(GemmTime, LargeShapesApproachTheBestRate) {
  const ProcessorRates r = a100();
  const double rate = rate_of(r, {8192, 8192, 8192});
  EXPECT_LT(rate, r.gemm);
  EXPECT_GT(rate, 0.9 * r.gemm);
}

TEST(GemmTime, TileBeyondFullWaveCostsAnotherWave) {
  const ProcessorRates r = a100();  // an A100 has 108 multiprocessors, so 12 × 9 tiles of 256×128 are exactly one wave
  const double full = gemm_s(r, {12 * 256, 9 * 128, 8192}), more = gemm_s(r, {12 * 256 + 64, 9 * 128, 8192});
  EXPECT_GT(more, 1.3 * full);
}

TEST(GemmTime, MisalignedRowsAreSlower) {
  const ProcessorRates r = a100();
  // With tp 8, a hidden size of 14400 was measured to be 20 % slower than 14336.
  const Gemm odd{2048, 5400, 14400}, even{2048, 5376, 14336};
  EXPECT_LT(rate_of(r, odd), 0.9 * rate_of(r, even));
  EXPECT_LT(alignment(50257), alignment(50264));
  EXPECT_LT(alignment(50264), alignment(50304));
}

TEST(GemmTime, ThinShapesAreMemoryBound) {
  ProcessorRates r = a100();
  const Gemm thin{16, 4096, 4096};
  const double before = gemm_s(r, thin);
  r.bandwidth *= 2;
  EXPECT_LT(gemm_s(r, thin), before);
}

// Fractions of the peak by rows per group, measured on a B200 with grouped GEMMs of 64 experts (SimuMax's tables, 2026,
// over all widths).
TEST(GemmTime, SmallExpertGroupsAreLimitedByWeightLoads) {
  const Processor& chip = built_in_catalog().processor("B200").processor;
  const ProcessorRates r = processor_rates(chip, "bf16");
  const double counts[] = {256, 128, 64, 32}, rows[] = {128, 256, 512, 1024}, measured[] = {0.20, 0.30, 0.39, 0.44};
  for (size_t i = 0; i < 4; ++i) {
    const Gemm p{.m = rows[i], .n = 4096, .k = 7168, .batch = counts[i], .grouped = true};
    EXPECT_NEAR(rate_of(r, p) / chip.bf16_flops, measured[i], 0.04) << rows[i];
  }
  EXPECT_NEAR(rate_of(r, {4096, 57344, 8192}) / chip.bf16_flops, 0.49, 0.02);
}

TEST(GemmTime, EmptyShapeTakesNoTime) {
  EXPECT_EQ(gemm_s(a100(), {0, 128, 128}), 0);
}

TEST(GemmTime, NeverIncreasesOnFasterProcessor) {
  ProcessorRates r = a100();
  for (const Gemm& p : {Gemm{100, 100, 100}, Gemm{4096, 12288, 4096}, Gemm{2048, 128, 2048, 64}}) {
    ProcessorRates faster = r;
    faster.gemm *= 1.5;
    faster.gemm16 *= 1.5;
    EXPECT_LE(gemm_s(faster, p), gemm_s(r, p));
    faster = r;
    faster.bandwidth *= 1.5;
    EXPECT_LE(gemm_s(faster, p), gemm_s(r, p));
  }
}

TEST(AttentionTime, CausalMaskHalvesFlopsAndBackwardNeedsTwoAndAHalfTimesForward) {
  Attention a{.batch = 2, .heads = 32, .kv_heads = 32, .queries = 8192, .keys = 8192, .qk_dim = 128, .v_dim = 128};
  const double half = attention_flops(a);
  a.causal = false;
  EXPECT_DOUBLE_EQ(attention_flops(a), 2 * half);
  EXPECT_DOUBLE_EQ(attention_flops(a), 4.0 * 2 * 8192 * 8192 * 32 * 128);
  const ProcessorRates r = a100();
  EXPECT_GT(flash_backward_s(r, a), 2 * flash_forward_s(r, a));
}

TEST(AttentionTime, AttentionRateGrowsWithSequenceLength) {
  const ProcessorRates r = a100();
  const auto rate = [&](double length) {
    const Attention a{1, 32, 32, length, length, 128, 128, true};
    return attention_flops(a) / flash_forward_s(r, a);
  };
  EXPECT_LT(rate(1024), rate(4096));
  EXPECT_LT(rate(4096), rate(32768));
}

// Measured on a B200 (SimuMax's tables, 2026): causal attention of one sequence, 4096 tokens with 64 heads and 131072
// tokens with 16 heads, head dimension 128.
TEST(AttentionTime, BlackwellReachesTheMeasuredRate) {
  const Processor& chip = built_in_catalog().processor("B200").processor;
  const ProcessorRates r = processor_rates(chip, "bf16");
  const Attention brief{1, 64, 8, 4096, 4096, 128, 128, true}, lasting{1, 16, 2, 131072, 131072, 128, 128, true};
  const auto forward = [&](const Attention& a) { return attention_flops(a) / flash_forward_s(r, a) / chip.bf16_flops; };
  const auto backward = [&](const Attention& a) {
    return 2.5 * attention_flops(a) / flash_backward_s(r, a) / chip.bf16_flops;
  };
  EXPECT_NEAR(forward(brief), 0.435, 0.03);
  EXPECT_NEAR(backward(brief), 0.365, 0.03);
  EXPECT_NEAR(forward(lasting), 0.495, 0.03);
  EXPECT_NEAR(backward(lasting), 0.413, 0.03);
}

TEST(ProcessorRates, EightBitsDoubleTheGemmRate) {
  const Processor& h100 = built_in_catalog().processor("H100-80GB-SXM").processor;
  const ProcessorRates r = processor_rates(h100, "fp8");
  EXPECT_GT(r.gemm, 1.6 * r.gemm16);
  EXPECT_DOUBLE_EQ(r.gemm16, processor_rates(h100, "bf16").gemm16);
}

}  // namespace
}  // namespace esp::plan
