// Compares the bytes sent, by the transport's counters, with exact formulas. Data calls use ring algorithms here, so
// all ranks together send (N − 1)·n elements in a pass over n elements. Scalar calls (token counts, norms, step flags)
// are counted separately.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using comm::Op;

constexpr int kSteps = 3;

RunResult run(int ranks, const Overrides& more, const Overrides& model = tiny_model()) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.steps = kSteps;
  spec.separate_scalars = true;
  spec.overrides = model;
  spec.overrides.insert(spec.overrides.end(), more.begin(), more.end());
  return train_ranks(spec);
}

uint64_t total_bytes(const RunResult& seen, Op op, const std::string& group = "") {
  uint64_t sum = 0;
  for (const RankResult& rank : seen.ranks) sum += rank.traffic.bytes(op, group);
  return sum;
}
uint64_t total_calls(const RunResult& seen, Op op) {
  uint64_t sum = 0;
  for (const RankResult& rank : seen.ranks) sum += rank.traffic.calls(op);
  return sum;
}

// The bytes of one ring pass over all weights (or gradients), summed over the N ranks and all steps.
uint64_t bytes_per_pass(const RunResult& seen, size_t element) {
  return kSteps * (seen.ranks.size() - 1) * static_cast<uint64_t>(seen.count()) * element;
}

TEST(CommunicationVolume, AllReduceSendsTwoPassesPerStep) {
  for (const int ranks : {2, 3, 4}) {
    const RunResult seen = run(ranks, {"sync.method=allreduce"});
    EXPECT_EQ(total_bytes(seen, Op::all_reduce), 2 * bytes_per_pass(seen, 4)) << ranks;
    EXPECT_EQ(total_bytes(seen, Op::reduce_scatter) + total_bytes(seen, Op::all_gather), 0u);
  }
}

TEST(CommunicationVolume, Zero1And2SendTwoPassesPerStepWithoutAllReduce) {
  for (const int ranks : {2, 3, 4})
    for (const char* method : {"zero1", "zero2"}) {
      const RunResult seen = run(ranks, {fmt::format("sync.method={}", method)});
      EXPECT_EQ(total_bytes(seen, Op::reduce_scatter), bytes_per_pass(seen, 4)) << method << " on " << ranks;
      EXPECT_EQ(total_bytes(seen, Op::all_gather), bytes_per_pass(seen, 4)) << method << " on " << ranks;
      EXPECT_EQ(total_calls(seen, Op::all_reduce), 0u) << method << " on " << ranks;
    }
}

// Three passes: forward and backward each gather every unit, and gradients are scattered. With tied embeddings, forward
// reads the stem (the embedding unit) first and last; backward does not read it, because the loss computes its
// gradients in forward. So the stem is gathered twice too, unless the prefetch window covers the whole forward pass.
TEST(CommunicationVolume, Zero3SendsThreePassesPerStep) {
  for (const int ranks : {2, 3, 4})
    for (const char* prefetch : {"0", "1", "2"}) {
      const RunResult tied = run(ranks, {"sync.method=zero3", fmt::format("sync.prefetch={}", prefetch)});
      EXPECT_EQ(total_bytes(tied, Op::reduce_scatter), bytes_per_pass(tied, 4)) << ranks;
      EXPECT_EQ(total_bytes(tied, Op::all_gather), 2 * bytes_per_pass(tied, 4)) << ranks << " prefetch " << prefetch;
      EXPECT_EQ(total_calls(tied, Op::all_reduce), 0u);
    }
}

TEST(CommunicationVolume, Zero3GathersTheInputEmbeddingOnceWhenUntied) {
  for (const int ranks : {2, 3}) {
    const RunResult seen = run(ranks, {"sync.method=zero3", "model.tie_embeddings=false"});
    const uint64_t stem = kSteps * (seen.ranks.size() - 1) * static_cast<uint64_t>(seen.units.front()) * 4;
    EXPECT_EQ(total_bytes(seen, Op::reduce_scatter), bytes_per_pass(seen, 4)) << ranks;
    EXPECT_EQ(total_bytes(seen, Op::all_gather), 2 * bytes_per_pass(seen, 4) - stem) << ranks;
  }
}

// If sizes are divisible, each rank sends exactly 1/N of the total.
TEST(CommunicationVolume, EveryRankSendsSameBytesWhenSizesAreDivisible) {
  const Overrides even = {"model.dim=16",    "model.heads=2",   "model.ffn=32",
                          "model.vocab=256", "model.seq_len=8", "train.precision=bf16"};
  for (const uint64_t ranks : {2, 4})
    for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
      const RunResult seen = run(static_cast<int>(ranks), {fmt::format("sync.method={}", method)}, tiny_model(even));
      const uint64_t times = std::string(method) == "zero3" ? 3 : 2;
      for (const RankResult& rank : seen.ranks)
        EXPECT_EQ(rank.traffic.data_bytes(),
                  kSteps * times * (ranks - 1) * static_cast<uint64_t>(seen.count()) * 2 / ranks)
            << method << " on " << ranks;
    }
}

TEST(CommunicationVolume, ScalarCallsSendFewBytesPerStep) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const RunResult seen = run(4, {fmt::format("sync.method={}", method)});
    for (const RankResult& rank : seen.ranks) {
      EXPECT_GT(rank.traffic.scalar_bytes(), 0u) << method;
      // Bound per step: a token count and a norm of 8 bytes each, from every rank to the three others, and three 8-byte
      // words from each of four ranks.
      EXPECT_LE(rank.traffic.scalar_bytes(), kSteps * (2 * 2 * 3 * 8 + 4 * 3 * 8u)) << method;
    }
  }
}

TEST(CommunicationVolume, Bf16WireHalvesGradientBytes) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const RunResult seen = run(3, {fmt::format("sync.method={}", method), "sync.wire=bf16"});
    const bool sums = std::string(method) == "allreduce";
    EXPECT_EQ(total_bytes(seen, sums ? Op::all_reduce : Op::reduce_scatter), (sums ? 2 : 1) * bytes_per_pass(seen, 2))
        << method;
    if (!sums) {  // weights are sent in the storage type, not in the wire type
      EXPECT_EQ(total_bytes(seen, Op::all_gather), (std::string(method) == "zero3" ? 2 : 1) * bytes_per_pass(seen, 4))
          << method;
    }
  }
}

// With sync.accumulate = reduced, gradients are scattered for every micro-batch; with local, once per step. zero3 also
// gathers weights for every micro-batch.
TEST(CommunicationVolume, GradientBytesFollowAccumulationMode) {
  for (const char* method : {"zero2", "zero3"})
    for (const char* accumulate : {"local", "reduced"}) {
      const RunResult seen = run(2, {"train.micro_batch=4", fmt::format("sync.method={}", method),
                                     fmt::format("sync.accumulate={}", accumulate)});
      const uint64_t scatters = std::string(accumulate) == "local" ? 1 : 3;
      EXPECT_EQ(total_bytes(seen, Op::reduce_scatter), scatters * bytes_per_pass(seen, 4))
          << method << " " << accumulate;
      EXPECT_EQ(total_bytes(seen, Op::all_gather),
                (std::string(method) == "zero3" ? 3 * 2 : 1) * bytes_per_pass(seen, 4))
          << method;
    }
  const RunResult whole = run(2, {"train.micro_batch=4", "sync.method=allreduce"});
  EXPECT_EQ(total_bytes(whole, Op::all_reduce), 2 * bytes_per_pass(whole, 4));
}

TEST(CommunicationVolume, KeepGatheredGathersEachUnitOnce) {
  const RunResult seen = run(2, {"sync.method=zero3", "sync.keep_gathered=true"});
  EXPECT_EQ(total_bytes(seen, Op::all_gather), bytes_per_pass(seen, 4));
}

// Two shard groups of two ranks. Inside a group the traffic is that of two ranks. Across groups, each shard is
// all-reduced with the same shard of the other group.
TEST(CommunicationVolume, ShardGroupsReduceScatterInsideAndAllReduceAcross) {
  const Overrides untied = {"model.tie_embeddings=false", "sync.group=2"};
  for (const char* method : {"zero1", "zero2", "zero3"}) {
    Overrides set = untied;
    set.push_back(fmt::format("sync.method={}", method));
    const RunResult seen = run(4, set);
    // bytes of one pass in a group of two ranks: (2 − 1)·Φ·e per step
    const uint64_t once = kSteps * static_cast<uint64_t>(seen.count()) * 4;
    EXPECT_EQ(total_bytes(seen, Op::reduce_scatter, "world/0"), 2 * once) << method;
    EXPECT_EQ(total_bytes(seen, Op::all_reduce, "world/1"), 2 * once) << method;
    EXPECT_EQ(total_bytes(seen, Op::all_reduce) + total_bytes(seen, Op::reduce_scatter), 4 * once)
        << method << ": total over all groups";
    if (std::string(method) != "zero3") {
      EXPECT_EQ(total_bytes(seen, Op::all_gather, "world/0"), 2 * once) << method;
    }
  }
}

}  // namespace
}  // namespace esp::parity
