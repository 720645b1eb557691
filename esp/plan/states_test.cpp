#include "esp/plan/states.h"

#include <gtest/gtest.h>

namespace esp::plan {
namespace {

ModelShape llama(int64_t layers = 32) {
  ModelShape s;
  s.arch = "llama";
  s.layers = layers;
  s.hidden = 4096;
  s.ffn = 11008;
  s.heads = s.kv_heads = 32;
  s.head_dim = 128;
  s.vocab = 32000;
  s.seq = 2048;
  s.gated = s.rms = true;
  s.bias = s.tied = s.learned_positions = false;
  return s;
}

double states_gb(double parameters, int zero, int ranks) {
  ModelShape s;
  s.arch = "any";
  s.given_parameters = parameters;
  Policy p;
  p.dp = ranks;
  p.zero = zero;
  p.gradients_fp32 = false;
  p.software = "analytic";
  return states_of(parameters_by_stage(s, p)[0], p).states() / 1e9;
}

// Rajbhandari et al. 2020, table 1: per-device memory of model states.
TEST(States, BytesMatchZeroPaperTableToPrintedDigit) {
  EXPECT_NEAR(states_gb(7.5e9, 1, 4), 52.5, 0.05);
  EXPECT_NEAR(states_gb(7.5e9, 2, 4), 41.3, 0.06);
  EXPECT_NEAR(states_gb(7.5e9, 3, 4), 30, 0.05);
  EXPECT_NEAR(states_gb(7.5e9, 1, 64), 31.4, 0.05);
  EXPECT_NEAR(states_gb(7.5e9, 2, 64), 16.6, 0.05);
  EXPECT_NEAR(states_gb(7.5e9, 3, 64), 1.88, 0.006);
  EXPECT_NEAR(states_gb(128e9, 1, 1024), 513.5, 0.05);
  EXPECT_NEAR(states_gb(128e9, 2, 256), 263, 0.5);
  EXPECT_NEAR(states_gb(1e12, 3, 1024), 15.6, 0.05);
  EXPECT_NEAR(states_gb(1e12, 0, 1), 16000, 0.5);
}

TEST(States, ParametersOfAllRanksSumToModel) {
  const ModelShape s = llama();
  Policy p;
  p.pp = 4;
  double sum = 0;
  for (const RankParameters& held : parameters_by_stage(s, p)) sum += held.dense;
  EXPECT_DOUBLE_EQ(sum, s.parameters());
  p.tp = 8;
  sum = 0;
  for (const RankParameters& held : parameters_by_stage(s, p)) sum += 8 * held.dense;
  const double replicated = (2 * 32 + 1) * 4096.0;  // parameters of the norms, which are not sharded
  EXPECT_DOUBLE_EQ(sum, s.parameters() + 7 * replicated);
}

TEST(States, EmbeddingAndHeadAreOnEndStagesAndTiedTableIsOnBoth) {
  ModelShape s = llama();
  Policy p;
  p.pp = 4;
  const auto held = parameters_by_stage(s, p);
  EXPECT_DOUBLE_EQ(held[0].dense - held[1].dense, 32000.0 * 4096);
  EXPECT_DOUBLE_EQ(held[3].dense - held[1].dense, 32000.0 * 4096 + 4096);
  s.tied = true;
  EXPECT_DOUBLE_EQ(parameters_by_stage(s, p)[3].dense, held[3].dense);
  p.vocab_parallel_pipeline = true;
  const auto spread = parameters_by_stage(s, p);
  EXPECT_DOUBLE_EQ(spread[1].dense, spread[2].dense);
  EXPECT_NEAR(spread[1].dense - held[1].dense, 2 * 32000.0 * 4096 / 4, 1);
}

TEST(States, FoldedScheduleHasFirstAndLastModelChunkOnFirstStage) {
  const ModelShape s = llama();
  Policy p;
  p.pp = 4;
  p.schedule = "zb-v";
  const auto held = parameters_by_stage(s, p);
  EXPECT_DOUBLE_EQ(held[0].dense - held[1].dense, 2 * 32000.0 * 4096 + 4096);
  p.schedule = "dualpipe";
  EXPECT_NEAR(parameters_by_stage(s, p)[1].dense, 2 * 8 * s.layer_parameters(0), 1);
}

TEST(States, RemainingLayersFollowSoftwareRuleOrStageLayers) {
  const ModelShape s = llama(10);
  Policy p;
  p.pp = 4;
  EXPECT_EQ(pipeline_pieces(s, p).layers, (std::vector<int>{2, 3, 3, 2}));
  p.software = "espalier";
  EXPECT_EQ(pipeline_pieces(s, p).layers, (std::vector<int>{3, 3, 2, 2}));
  p.stage_layers = {3, 3, 3, 1};
  EXPECT_EQ(pipeline_pieces(s, p).first, (std::vector<int>{0, 3, 6, 9}));
}

TEST(States, BalancedLayersGiveStageWithHeadFewerLayers) {
  ModelShape s = llama(32);
  s.vocab = 256000;
  Policy p;
  p.pp = 8;
  const auto layers = balanced_layers(s, p);
  int sum = 0;
  for (const int n : layers) sum += n;
  EXPECT_EQ(sum, 32);
  EXPECT_LT(layers.back(), layers.front());
}

TEST(States, StateBytesFollowPrecisionZeroStageAndOptimizer) {
  Policy p;  // fp32 gradients: 18 bytes per parameter
  EXPECT_EQ(states_of({1e9, 0}, p).states(), 18e9);
  p.dp = 8;
  p.zero = 1;
  EXPECT_EQ(states_of({1e9, 0}, p).states(), (6 + 12.0 / 8) * 1e9);
  p.zero = 3;  // ZeRO 3: the rank's shard is the master copy
  EXPECT_EQ(states_of({1e9, 0}, p).states(), 16e9 / 8);
  p.shard_group = 4;
  EXPECT_EQ(states_of({1e9, 0}, p).states(), 16e9 / 4);
  p = Policy{};
  p.optimizer = "sgd";
  EXPECT_EQ(states_of({1e9, 0}, p).states(), 10e9);
  p = Policy{};
  p.precision = "fp32";
  EXPECT_EQ(states_of({1e9, 0}, p).states(), 16e9);
}

TEST(States, OffloadMovesStatesToHostMemory) {
  Policy p;
  p.zero = 2;
  p.dp = 4;
  const Memory here = states_of({1e9, 0}, p);
  p.offload = OffloadTarget::host;
  const Memory there = states_of({1e9, 0}, p);
  EXPECT_EQ(there.states() + there.host, here.states());
  EXPECT_EQ(there.states(), there.parameter);
}

TEST(States, ExpertsAreShardedOverExpertGroup) {
  ModelShape s = llama();
  s.experts = 8;
  s.topk = 2;
  s.expert_ffn = s.ffn;
  Policy p;
  p.dp = 16;
  const double all = layer_parameters_on_rank(s, p, 5).expert;
  p.ep = 8;
  EXPECT_DOUBLE_EQ(layer_parameters_on_rank(s, p, 5).expert, all / 8);
  EXPECT_EQ(expert_replicas(p), 2);
}

}  // namespace
}  // namespace esp::plan
