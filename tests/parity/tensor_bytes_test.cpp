// Traffic of tensor parallelism: 4 all-reduces and 8(t−1)/t·bsh·e bytes per rank, layer and micro-batch, with and
// without sequence parallelism. Activation memory per layer must scale as 1/t with sequence parallelism.
#include <gtest/gtest.h>

#include "tests/parity/tensor_runs.h"

namespace esp::parity {
namespace {

using comm::Op;

constexpr int64_t kBatch = 2, kTokens = 24, kDim = 48;

TensorRunSpec spec_of(int tp, int64_t layers, bool sequence) {
  TensorRunSpec spec;
  spec.config = model::default_config("gpt");
  spec.config.layers = layers;
  spec.config.heads = 12;
  spec.config.dim = kDim;
  spec.config.vocab = 48;
  spec.config.seq_len = kTokens;
  spec.tp = tp;
  spec.sequence = sequence;
  spec.batch = kBatch;
  spec.tokens = kTokens;
  spec.piece_bytes = int64_t{1} << 20;
  spec.rings = true;
  return spec;
}

struct SentTotals {
  uint64_t bytes = 0;
  std::map<Op, uint64_t> calls;
};

// Bytes and calls, summed over all ranks.
SentTotals sent_totals(const TensorRunSpec& spec) {
  SentTotals all;
  const auto ranks = run_tensor_parallel(spec);
  for (const TensorRankResult& rank : ranks)
    for (const comm::CallStats& one : rank.stats) all.bytes += one.bytes_sent;
  for (const comm::CallStats& one : ranks[0].stats) all.calls[one.op] += one.calls;
  return all;
}

// Traffic of one layer, measured as half of the difference between three layers and one.
struct LayerTraffic {
  int64_t bytes;
  std::map<Op, int64_t> calls;
};
LayerTraffic layer_traffic(TensorRunSpec spec) {
  spec.config.layers = 1;
  const SentTotals one = sent_totals(spec);
  spec.config.layers = 3;
  const SentTotals three = sent_totals(spec);
  LayerTraffic layer{(static_cast<int64_t>(three.bytes) - static_cast<int64_t>(one.bytes)) / 2, {}};
  for (const auto& [op, calls] : three.calls)
    layer.calls[op] = (static_cast<int64_t>(calls) - static_cast<int64_t>(one.calls.at(op))) / 2;
  return layer;
}

constexpr int64_t kStream = kBatch * kTokens * kDim * 8;  // bytes of the residual stream in fp64: bsh·e
// Bytes that sequence parallelism adds per layer and step, not per micro-batch: partial gradients of 4 norm vectors and
// 2 biases, summed over the ranks.
int64_t partial_gradient_bytes(int tp) {
  return 2 * (tp - 1) * 6 * kDim * 8;
}

TEST(TensorParallelVolume, LayerSendsFourAllReducesOfTheResidualStream) {
  for (const int tp : {2, 3, 4}) {
    const LayerTraffic layer = layer_traffic(spec_of(tp, 1, false));
    EXPECT_EQ(layer.bytes, 8 * (tp - 1) * kStream) << tp;  // sum over the t ranks; each of them sends 8(t−1)/t · bsh·e
    EXPECT_EQ(layer.calls.at(Op::all_reduce), 4) << tp;
    for (const auto& [op, calls] : layer.calls) EXPECT_EQ(calls, op == Op::all_reduce ? 4 : 0) << name_of(op);
  }
}

TEST(TensorParallelVolume, SequenceParallelismSendsTheSameBytes) {
  for (const int tp : {2, 3, 4}) {
    TensorRunSpec spec = spec_of(tp, 1, true);
    spec.keep_gathered = true;
    const LayerTraffic layer = layer_traffic(spec);
    EXPECT_EQ(layer.bytes, 8 * (tp - 1) * kStream + partial_gradient_bytes(tp)) << tp;
    EXPECT_EQ(layer.calls.at(Op::all_gather), 4) << tp;
    EXPECT_EQ(layer.calls.at(Op::reduce_scatter), 4) << tp;
    EXPECT_EQ(layer.calls.at(Op::all_reduce), 1) << tp;
  }
}

TEST(TensorParallelVolume, RepeatedGatherAddsOneAllGatherForEachOfTwoGemms) {
  const LayerTraffic layer = layer_traffic(spec_of(2, 1, true));
  EXPECT_EQ(layer.bytes, (8 + 2) * kStream + partial_gradient_bytes(2));
  EXPECT_EQ(layer.calls.at(Op::all_gather), 6);
}

// Overlap splits a collective into several calls, which send the same bytes in total.
TEST(TensorParallelVolume, OverlapSendsTheSameBytes) {
  for (const bool sequence : {false, true}) {
    TensorRunSpec whole = spec_of(2, 1, sequence), pieces = whole;
    pieces.piece_bytes = 4096;
    whole.overlap = false;
    const LayerTraffic a = layer_traffic(whole), b = layer_traffic(pieces);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_GT(b.calls.at(sequence ? Op::reduce_scatter : Op::all_reduce),
              a.calls.at(sequence ? Op::reduce_scatter : Op::all_reduce));
  }
}

// The vocabulary-parallel cross entropy sends only 3 numbers per token instead of V logits, and the gradient of its
// input.
TEST(TensorParallelVolume, VocabularyParallelHeadSendsThreeNumbersPerToken) {
  for (const int64_t vocab : {48, 480}) {
    TensorRunSpec spec = spec_of(2, 1, false);
    spec.config.vocab = vocab;
    const int64_t rest = layer_traffic(spec).bytes;  // traffic of the model's only layer
    spec.config.layers = 1;
    const int64_t tokens = kBatch * kTokens;
    // Rest of the traffic, for both ranks: the embedding's all-reduce, the gradient of the head's input, and 3 numbers
    // per token.
    EXPECT_EQ(static_cast<int64_t>(sent_totals(spec).bytes) - rest, 2 * (2 * kStream + 3 * tokens * 8)) << vocab;
  }
}

// Activation bytes of one layer: the peak with 6 layers minus the peak with 2, divided by 4.
int64_t kept_per_layer(int tp, bool sequence) {
  TensorRunSpec spec = spec_of(tp, 2, sequence);
  spec.config.dropout = 0.1;
  spec.batch = 8;
  const auto two = run_tensor_parallel(spec)[0].peak_activations;
  spec.config.layers = 6;
  return static_cast<int64_t>(run_tensor_parallel(spec)[0].peak_activations - two) / 4;
}

TEST(TensorParallelMemory, ActivationsPerLayerScaleAsOneOverTWithSequenceParallelism) {
  const int64_t one = kept_per_layer(1, false);
  for (const int tp : {2, 3, 4}) {
    EXPECT_NEAR(static_cast<double>(kept_per_layer(tp, true)) * tp / static_cast<double>(one), 1, 0.01) << tp;
    // Without sequence parallelism every rank keeps the whole residual stream: inputs of norms and GEMMs, and outputs
    // of dropout.
    EXPECT_GT(static_cast<double>(kept_per_layer(tp, false)) * tp / static_cast<double>(one), 1.2) << tp;
  }
}

}  // namespace
}  // namespace esp::parity
