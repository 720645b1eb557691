// What the tensor axis sends, counted: per layer and micro-batch 4 all-reduces and 8(t−1)/t·bsh·e bytes, with the
// stream's rows divided or not; and what a layer keeps, which then falls as 1/t.
#include <gtest/gtest.h>

#include "tests/parity/tensor_runs.h"

namespace esp::parity {
namespace {

using comm::Op;

constexpr int64_t kBatch = 2, kTokens = 24, kDim = 48;

TensorPlan plan_of(int tp, int64_t layers, bool sequence) {
  TensorPlan plan;
  plan.config = model::default_config("gpt");
  plan.config.layers = layers;
  plan.config.heads = 12;
  plan.config.dim = kDim;
  plan.config.vocab = 48;
  plan.config.seq_len = kTokens;
  plan.tp = tp;
  plan.sequence = sequence;
  plan.batch = kBatch;
  plan.tokens = kTokens;
  plan.piece_bytes = int64_t{1} << 20;
  plan.rings = true;
  return plan;
}

struct Sent {
  uint64_t bytes = 0;
  std::map<Op, uint64_t> calls;
};

// By all ranks.
Sent sent(const TensorPlan& plan) {
  Sent all;
  const auto ranks = run_tensor(plan);
  for (const TensorSeen& rank : ranks)
    for (const comm::CallStats& one : rank.stats) all.bytes += one.bytes_sent;
  for (const comm::CallStats& one : ranks[0].stats) all.calls[one.op] += one.calls;
  return all;
}

// Of one layer: three have twice as many more than one as two have.
struct PerLayer {
  int64_t bytes;
  std::map<Op, int64_t> calls;
};
PerLayer per_layer(TensorPlan plan) {
  plan.config.layers = 1;
  const Sent one = sent(plan);
  plan.config.layers = 3;
  const Sent three = sent(plan);
  PerLayer layer{(static_cast<int64_t>(three.bytes) - static_cast<int64_t>(one.bytes)) / 2, {}};
  for (const auto& [op, calls] : three.calls)
    layer.calls[op] = (static_cast<int64_t>(calls) - static_cast<int64_t>(one.calls.at(op))) / 2;
  return layer;
}

constexpr int64_t kStream = kBatch * kTokens * kDim * 8;  // bsh·e in fp64
// What sequence parallelism adds to one layer and step, not to a micro-batch: the parts of 4 norms' vectors and 2
// biases, summed.
int64_t partial_bytes(int tp) {
  return 2 * (tp - 1) * 6 * kDim * 8;
}

TEST(TensorBytes, ALayerHasFourAllReducesOfTheStream) {
  for (const int tp : {2, 3, 4}) {
    const PerLayer layer = per_layer(plan_of(tp, 1, false));
    EXPECT_EQ(layer.bytes, 8 * (tp - 1) * kStream) << tp;  // of all t ranks: each sends 8(t−1)/t
    EXPECT_EQ(layer.calls.at(Op::all_reduce), 4) << tp;
    for (const auto& [op, calls] : layer.calls) EXPECT_EQ(calls, op == Op::all_reduce ? 4 : 0) << name_of(op);
  }
}

TEST(TensorBytes, DividedRowsSendTheSame) {
  for (const int tp : {2, 3, 4}) {
    TensorPlan plan = plan_of(tp, 1, true);
    plan.keep_gathered = true;
    const PerLayer layer = per_layer(plan);
    EXPECT_EQ(layer.bytes, 8 * (tp - 1) * kStream + partial_bytes(tp)) << tp;
    EXPECT_EQ(layer.calls.at(Op::all_gather), 4) << tp;
    EXPECT_EQ(layer.calls.at(Op::reduce_scatter), 4) << tp;
    EXPECT_EQ(layer.calls.at(Op::all_reduce), 1) << tp;
  }
}

TEST(TensorBytes, GatheringAgainCostsOneGatherForEachOfTwoProducts) {
  const PerLayer layer = per_layer(plan_of(2, 1, true));
  EXPECT_EQ(layer.bytes, (8 + 2) * kStream + partial_bytes(2));
  EXPECT_EQ(layer.calls.at(Op::all_gather), 6);
}

// Pieces are more calls, not more bytes.
TEST(TensorBytes, OverlapSendsTheSame) {
  for (const bool sequence : {false, true}) {
    TensorPlan whole = plan_of(2, 1, sequence), pieces = whole;
    pieces.piece_bytes = 4096;
    whole.overlap = false;
    const PerLayer a = per_layer(whole), b = per_layer(pieces);
    EXPECT_EQ(a.bytes, b.bytes);
    EXPECT_GT(b.calls.at(sequence ? Op::reduce_scatter : Op::all_reduce),
              a.calls.at(sequence ? Op::reduce_scatter : Op::all_reduce));
  }
}

// The cross entropy of V classes sends 3 numbers a token instead of V, and the gradient of its input.
TEST(TensorBytes, TheHeadSendsThreeNumbersAToken) {
  for (const int64_t vocab : {48, 480}) {
    TensorPlan plan = plan_of(2, 1, false);
    plan.config.vocab = vocab;
    const int64_t rest = per_layer(plan).bytes;  // the one layer
    plan.config.layers = 1;
    const int64_t tokens = kBatch * kTokens;
    // By both ranks: the embedding's sum, the head's gradient, 3 numbers.
    EXPECT_EQ(static_cast<int64_t>(sent(plan).bytes) - rest, 2 * (2 * kStream + 3 * tokens * 8)) << vocab;
  }
}

// Peak activations of blocks beyond the first, which is all a layer keeps.
int64_t kept(int tp, bool sequence) {
  TensorPlan plan = plan_of(tp, 2, sequence);
  plan.config.dropout = 0.1;
  plan.batch = 8;
  const auto two = run_tensor(plan)[0].peak_activations;
  plan.config.layers = 6;
  return static_cast<int64_t>(run_tensor(plan)[0].peak_activations - two) / 4;
}

TEST(TensorMemory, WhatALayerKeepsFallsAsOneOverTWithDividedRows) {
  const int64_t one = kept(1, false);
  for (const int tp : {2, 3, 4}) {
    EXPECT_NEAR(static_cast<double>(kept(tp, true)) * tp / static_cast<double>(one), 1, 0.01) << tp;
    // Whole rows of the stream stay on every rank: the inputs of norms and products, and dropout's outputs.
    EXPECT_GT(static_cast<double>(kept(tp, false)) * tp / static_cast<double>(one), 1.2) << tp;
  }
}

}  // namespace
}  // namespace esp::parity
