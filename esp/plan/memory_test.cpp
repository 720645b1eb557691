// Compares two results with the formulas of the algorithms: the memory of stages by category, and the bytes that each
// group sends per step.
#include <gtest/gtest.h>

#include "esp/plan/activations.h"
#include "esp/plan/catalog.h"
#include "esp/plan/estimate.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

constexpr double s = 2048, h = 4096;

ModelShape gpt() {
  ModelShape shape;
  shape.layers = 32;
  shape.hidden = 4096;
  shape.ffn = 16384;
  shape.heads = shape.kv_heads = 32;
  shape.head_dim = 128;
  shape.vocab = 51200;
  shape.seq = 2048;
  return shape;
}

Cluster a100s(int gpus) {
  ClusterRequest request;
  request.gpus = gpus;
  return make_cluster(built_in_catalog(), built_in_catalog().processor("A100-80GB-SXM"), request);
}

double bytes_of(const Estimate& e, const std::string& group) {
  double sum = 0;
  for (const GroupTraffic& row : e.traffic)
    if (row.group == group) sum += row.bytes;
  return sum;
}

TEST(StageMemory, MemoryIsThatOfStageWithHighestTotal) {
  Policy p;
  p.pp = 4;
  p.global_batch = 16;
  const auto all = stage_memories(gpt(), a100s(4), p);
  ASSERT_EQ(all.size(), 4u);
  const Memory worst = memory_of(gpt(), a100s(4), p);
  for (const Memory& m : all) EXPECT_LE(m.total(), worst.total());
  // The first stage holds the most micro-batches; the last stage holds the logits.
  EXPECT_GT(all[0].activation, all[3].activation);
  EXPECT_GE(all[3].buffer, head_bytes(gpt(), p));
  EXPECT_LT(all[1].states(), all[0].states());
}

TEST(StageMemory, FirstStageKeepsActivationsOfOneCompleteModel) {
  Policy p;
  p.pp = 4;
  p.global_batch = 16;
  p.software = "analytic";
  const double layer = kept_bytes(layer_activations(gpt(), p, false), RecomputePolicy::none);
  EXPECT_DOUBLE_EQ(stage_memories(gpt(), a100s(4), p)[0].activation, 32 * layer);
  p.recompute = RecomputePolicy::full;
  p.recompute_layers = 2;  // two of eight layers are recomputed
  const double input = kept_bytes(layer_activations(gpt(), p, false), RecomputePolicy::full);
  EXPECT_NEAR(stage_memories(gpt(), a100s(4), p)[0].activation, 4 * (2 * input + 6 * layer), 1);
}

TEST(StageMemory, CountsGatheredUnitsOfZero3AsBuffers) {
  Policy p;
  p.dp = 64;
  p.global_batch = 64;
  p.zero = 2;
  const Memory two = memory_of(gpt(), a100s(64), p);
  p.zero = 3;
  const Memory three = memory_of(gpt(), a100s(64), p);
  EXPECT_LT(three.parameter, 0.1 * two.parameter);
  EXPECT_GT(three.buffer, two.buffer);
  p.keep_gathered = true;
  EXPECT_GT(memory_of(gpt(), a100s(64), p).buffer, three.buffer + 31 * 2 * 12 * h * h);
}

TEST(StageMemory, TotalIsAllocatedPlusSlackPlusContext) {
  Policy p;
  Cluster c = a100s(1);
  const Memory m = memory_of(gpt(), c, p);
  EXPECT_DOUBLE_EQ(m.total(), m.allocated() + m.slack + m.other);
  EXPECT_GT(m.slack, 0);
  c.reserved_bytes = 7e9;
  EXPECT_EQ(memory_of(gpt(), c, p).other, 7e9);
}

TEST(GroupTraffic, TensorGroupsSendFourAllReducesPerLayer) {
  Policy p;
  p.tp = 8;
  p.micro_batch = 2;
  p.global_batch = 8;
  const double each = 8.0 * 7 / 8 * 2 * s * h * 2;  // bytes of the all-reduces per layer: 8(t − 1)/t · b·s·h · 2
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(8), p), "tp"), 4 * 32 * each);
  p.recompute = RecomputePolicy::full;
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(8), p), "tp"), 4 * 32 * 1.5 * each);
  p.recompute = RecomputePolicy::none;
  p.sequence = true;  // with sequence parallelism, each region's input is gathered once more
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(8), p), "tp"), 4 * 32 * 1.25 * each);
}

TEST(GroupTraffic, PipelineSendsEachMicroBatchInBothDirections) {
  Policy p;
  p.pp = 4;
  p.global_batch = 16;
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(4), p), "pp"), 16 * 2 * s * h * 2);
  p.schedule = "interleaved";
  p.interleave = 2;
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(4), p), "pp"), 2 * 16 * 2 * s * h * 2);
}

TEST(GroupTraffic, ReplicasReduceGradientsAndGatherWeights) {
  Policy p;
  p.dp = 8;
  p.global_batch = 8;
  p.gradients_fp32 = false;
  const double parameters = gpt().parameters();
  EXPECT_NEAR(bytes_of(estimate(gpt(), a100s(8), p), "dp"), 2 * 7.0 / 8 * 2 * parameters, 1);
  p.zero = 1;
  EXPECT_NEAR(bytes_of(estimate(gpt(), a100s(8), p), "dp"), 2 * 7.0 / 8 * 2 * parameters, 1);
  p.zero = 3;
  EXPECT_NEAR(bytes_of(estimate(gpt(), a100s(8), p), "dp"), 3 * 7.0 / 8 * 2 * parameters, 1);
  p.global_batch = 16;  // ZeRO 3 gathers and scatters in every micro-batch
  EXPECT_NEAR(bytes_of(estimate(gpt(), a100s(8), p), "dp"), 2 * 3 * 7.0 / 8 * 2 * parameters, 1);
}

TEST(GroupTraffic, RingAttentionSendsKeysValuesAndTheirGradients) {
  Policy p;
  p.cp = 4;
  const double q = 2 * s / 4 * h * 2;
  EXPECT_DOUBLE_EQ(bytes_of(estimate(gpt(), a100s(4), p), "cp"), 32 * (3 * q + 7 * q));
}

TEST(GroupTraffic, ExpertLayersCallAllToAllTwicePerPass) {
  ModelShape shape = gpt();
  shape.experts = 8;
  shape.topk = 2;
  shape.expert_ffn = shape.ffn;
  Policy p;
  p.dp = p.ep = 8;
  p.global_batch = 8;
  EXPECT_DOUBLE_EQ(bytes_of(estimate(shape, a100s(8), p), "ep"), 32 * 4 * 7.0 / 8 * 2 * s * h * 2);
}

}  // namespace
}  // namespace esp::plan
