#include "esp/plan/activations.h"

#include <gtest/gtest.h>

#include "esp/parallel/pp/schedule.h"

namespace esp::plan {
namespace {

constexpr double s = 2048, b = 1, h = 12288, a = 96, t = 8;

ModelShape gpt3() {
  ModelShape shape;
  shape.layers = 96;
  shape.hidden = 12288;
  shape.ffn = 4 * 12288;
  shape.heads = shape.kv_heads = 96;
  shape.head_dim = 128;
  shape.vocab = 51200;
  shape.seq = 2048;
  return shape;
}

// The setting of Korthikanti et al. 2022: stored scores, dropout, fused softmax.
Policy paper() {
  Policy p;
  p.flash = false;
  p.dropout = true;
  p.precision = "fp16";
  p.software = "analytic";
  return p;
}

double kept(const Policy& p) {
  return kept_bytes(layer_activations(gpt3(), p, false), p.recompute);
}

// Korthikanti et al. 2022, table 2: bytes of a layer for each recomputation.
TEST(Activations, LayerBytesMatchKorthikantiTable) {
  Policy p = paper();
  EXPECT_DOUBLE_EQ(kept(p), s * b * h * (34 + 5 * a * s / h));
  p.tp = 8;
  EXPECT_DOUBLE_EQ(kept(p), s * b * h * (10 + 24 / t + 5 * a * s / (h * t)));
  p.sequence = true;
  EXPECT_DOUBLE_EQ(kept(p), s * b * h / t * (34 + 5 * a * s / h));
  p.recompute = RecomputePolicy::selective;
  EXPECT_DOUBLE_EQ(kept(p), 34 * s * b * h / t);
  p.recompute = RecomputePolicy::full;
  EXPECT_DOUBLE_EQ(kept(p), 2 * s * b * h / t);
  p.sequence = false;
  EXPECT_DOUBLE_EQ(kept(p), 2 * s * b * h);
  p.checkpoint_sharded = true;
  EXPECT_DOUBLE_EQ(kept(p), 2 * s * b * h / t);
}

TEST(Activations, FusedAttentionKeepsNoScores) {
  Policy p = paper();
  p.flash = true;
  EXPECT_EQ(layer_activations(gpt3(), p, false).scores, 0);
  EXPECT_NEAR(kept(p), 34 * s * b * h, 0.01 * 34 * s * b * h);
}

TEST(Activations, LayerBytesIncludeGatesAndGroupedKeyHeads) {
  ModelShape shape = gpt3();
  shape.arch = "llama";
  shape.gated = shape.rms = true;
  shape.kv_heads = 8;
  Policy p = paper();
  p.flash = true;
  p.dropout = false;
  const double f = 4 * h, tokens = s * b;
  const double norms = 4 * h, inputs = 4 * h, qkv = 2 * (96 + 16) * 128, out = 2 * h, rows = 4 * 96, ffn = 6 * f;
  EXPECT_DOUBLE_EQ(kept_bytes(layer_activations(shape, p, false), RecomputePolicy::none),
                   tokens * (norms + inputs + qkv + out + rows + ffn));
}

TEST(Activations, BytesScaleWithTokensPerRank) {
  Policy p = paper();
  p.flash = true;
  const double whole = kept(p);
  p.cp = 4;
  EXPECT_DOUBLE_EQ(kept(p), whole / 4);
  p.cp = 1;
  p.micro_batch = 3;
  EXPECT_DOUBLE_EQ(kept(p), 3 * whole);
}

TEST(Activations, LiveMicroBatchesMatchExecutedSchedules) {
  Policy p;
  p.pp = 8;
  p.global_batch = 64;
  EXPECT_EQ(live_micro_batches(p, 0), 8);
  EXPECT_EQ(live_micro_batches(p, 7), 1);
  p.schedule = "gpipe";
  EXPECT_EQ(live_micro_batches(p, 3), 64);
  // Interleaved schedule: the first stage holds the activations of L·(1 + (p − 1)/(p·v)) layers.
  p.schedule = "interleaved";
  p.interleave = 3;
  EXPECT_DOUBLE_EQ(live_micro_batches(p, 0) / 8, 1 + 7.0 / (8 * 3));
  // The closed form equals the peak of the schedules that the runtime executes.
  const parallel::ScheduleShape shape{8, 3, 64};
  for (int stage = 0; stage < 8; ++stage)
    EXPECT_DOUBLE_EQ(live_micro_batches(p, stage) * 3, parallel::schedule_row("interleaved").live(shape, stage));
  p.interleave = 1;
  p.schedule = "v-half";
  const double half = live_micro_batches(p, 0);
  p.schedule = "v-min";
  EXPECT_LT(live_micro_batches(p, 0), half);
  EXPECT_LT(half, 8);
}

TEST(Activations, ExpertLayersKeepRoutedRows) {
  ModelShape shape = gpt3();
  shape.experts = 8;
  shape.topk = 2;
  shape.expert_ffn = shape.ffn;
  Policy p = paper();
  p.flash = true;
  p.dropout = false;
  const double dense = kept_bytes(layer_activations(shape, p, false), RecomputePolicy::none);
  const double experts = kept_bytes(layer_activations(shape, p, true), RecomputePolicy::none);
  EXPECT_NEAR(experts - dense, s * (2 * 2 * 2 * h + 16 * h + 4 * 8), 1);
}

}  // namespace
}  // namespace esp::plan
