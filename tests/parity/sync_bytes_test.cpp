// Bytes sent, counted by the transport: exact. Data goes round rings here, so that a call on n elements sends (N − 1)·n
// over all ranks; counts, norms and step words are counted apart.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using comm::Op;

constexpr int kSteps = 3;

Seen run(int ranks, const Overrides& more, const Overrides& model = tiny()) {
  Plan plan;
  plan.ranks = ranks;
  plan.steps = kSteps;
  plan.apart = true;
  plan.overrides = model;
  plan.overrides.insert(plan.overrides.end(), more.begin(), more.end());
  return train_ranks(plan);
}

uint64_t bytes(const Seen& seen, Op op, const std::string& group = "") {
  uint64_t sum = 0;
  for (const RankSeen& rank : seen.ranks) sum += rank.traffic.bytes(op, group);
  return sum;
}
uint64_t calls(const Seen& seen, Op op) {
  uint64_t sum = 0;
  for (const RankSeen& rank : seen.ranks) sum += rank.traffic.calls(op);
  return sum;
}

// Of one pass of all values (or gradients) over N ranks, all ranks together.
uint64_t pass(const Seen& seen, size_t element) {
  return kSteps * (seen.ranks.size() - 1) * static_cast<uint64_t>(seen.count()) * element;
}

TEST(Bytes, OfAllReduceAreTwicePerStep) {
  for (const int ranks : {2, 3, 4}) {
    const Seen seen = run(ranks, {"sync.method=allreduce"});
    EXPECT_EQ(bytes(seen, Op::all_reduce), 2 * pass(seen, 4)) << ranks;
    EXPECT_EQ(bytes(seen, Op::reduce_scatter) + bytes(seen, Op::all_gather), 0u);
  }
}

TEST(Bytes, OfStages1And2AreTwicePerStepAndNeverAnAllReduce) {
  for (const int ranks : {2, 3, 4})
    for (const char* method : {"zero1", "zero2"}) {
      const Seen seen = run(ranks, {fmt::format("sync.method={}", method)});
      EXPECT_EQ(bytes(seen, Op::reduce_scatter), pass(seen, 4)) << method << " on " << ranks;
      EXPECT_EQ(bytes(seen, Op::all_gather), pass(seen, 4)) << method << " on " << ranks;
      EXPECT_EQ(calls(seen, Op::all_reduce), 0u) << method << " on " << ranks;
    }
}

// Forward and backward gather every unit. A tied stem is read twice by forward, first and last, and not by backward,
// since the loss makes its gradients at once: it too comes twice, until the window spans all of forward.
TEST(Bytes, OfStage3AreThreeTimesPerStep) {
  for (const int ranks : {2, 3, 4})
    for (const char* prefetch : {"0", "1", "2"}) {
      const Seen tied = run(ranks, {"sync.method=zero3", fmt::format("sync.prefetch={}", prefetch)});
      EXPECT_EQ(bytes(tied, Op::reduce_scatter), pass(tied, 4)) << ranks;
      EXPECT_EQ(bytes(tied, Op::all_gather), 2 * pass(tied, 4)) << ranks << " ahead " << prefetch;
      EXPECT_EQ(calls(tied, Op::all_reduce), 0u);
    }
}

TEST(Bytes, OfStage3WithAHeadOfItsOwnSpareTheStemInBackward) {
  for (const int ranks : {2, 3}) {
    const Seen seen = run(ranks, {"sync.method=zero3", "model.tie_embeddings=false"});
    const uint64_t stem = kSteps * (seen.ranks.size() - 1) * static_cast<uint64_t>(seen.units.front()) * 4;
    EXPECT_EQ(bytes(seen, Op::reduce_scatter), pass(seen, 4)) << ranks;
    EXPECT_EQ(bytes(seen, Op::all_gather), 2 * pass(seen, 4) - stem) << ranks;
  }
}

// Sizes that divide: each rank sends exactly its share.
TEST(Bytes, AreTheSameOnEveryRankWhereSizesDivide) {
  const Overrides even = {"model.dim=16",    "model.heads=2",   "model.ffn=32",
                          "model.vocab=256", "model.seq_len=8", "train.precision=bf16"};
  for (const uint64_t ranks : {2, 4})
    for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
      const Seen seen = run(static_cast<int>(ranks), {fmt::format("sync.method={}", method)}, tiny(even));
      const uint64_t times = std::string(method) == "zero3" ? 3 : 2;
      for (const RankSeen& rank : seen.ranks)
        EXPECT_EQ(rank.traffic.data_bytes(),
                  kSteps * times * (ranks - 1) * static_cast<uint64_t>(seen.count()) * 2 / ranks)
            << method << " on " << ranks;
    }
}

TEST(Bytes, OfScalarsAreAFewPerStep) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const Seen seen = run(4, {fmt::format("sync.method={}", method)});
    for (const RankSeen& rank : seen.ranks) {
      EXPECT_GT(rank.traffic.scalar_bytes(), 0u) << method;
      // A count and a norm of 8 bytes to each of three others, and three words of four ranks.
      EXPECT_LE(rank.traffic.scalar_bytes(), kSteps * (2 * 2 * 3 * 8 + 4 * 3 * 8u)) << method;
    }
  }
}

TEST(Bytes, AreHalfWhenGradientsTravelInBf16) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const Seen seen = run(3, {fmt::format("sync.method={}", method), "sync.wire=bf16"});
    const bool sums = std::string(method) == "allreduce";
    EXPECT_EQ(bytes(seen, sums ? Op::all_reduce : Op::reduce_scatter), (sums ? 2 : 1) * pass(seen, 2)) << method;
    if (!sums) {  // values are what they are
      EXPECT_EQ(bytes(seen, Op::all_gather), (std::string(method) == "zero3" ? 2 : 1) * pass(seen, 4)) << method;
    }
  }
}

// Gathers and scatters are per micro-batch where the sums are, once per step where gradients wait.
TEST(Bytes, OfMicroBatches) {
  for (const char* method : {"zero2", "zero3"})
    for (const char* accumulate : {"local", "reduced"}) {
      const Seen seen = run(2, {"train.micro_batch=4", fmt::format("sync.method={}", method),
                                fmt::format("sync.accumulate={}", accumulate)});
      const uint64_t scatters = std::string(accumulate) == "local" ? 1 : 3;
      EXPECT_EQ(bytes(seen, Op::reduce_scatter), scatters * pass(seen, 4)) << method << " " << accumulate;
      EXPECT_EQ(bytes(seen, Op::all_gather), (std::string(method) == "zero3" ? 3 * 2 : 1) * pass(seen, 4)) << method;
    }
  const Seen whole = run(2, {"train.micro_batch=4", "sync.method=allreduce"});
  EXPECT_EQ(bytes(whole, Op::all_reduce), 2 * pass(whole, 4));
}

TEST(Bytes, OfKeptUnitsAreGatheredOnce) {
  const Seen seen = run(2, {"sync.method=zero3", "sync.keep_gathered=true"});
  EXPECT_EQ(bytes(seen, Op::all_gather), pass(seen, 4));
}

// Two groups of two: everything inside a group as among two ranks; across, each shard is all-reduced with its twin.
TEST(Bytes, InsideAGroupAndAcross) {
  const Overrides untied = {"model.tie_embeddings=false", "sync.group=2"};
  for (const char* method : {"zero1", "zero2", "zero3"}) {
    Overrides set = untied;
    set.push_back(fmt::format("sync.method={}", method));
    const Seen seen = run(4, set);
    const uint64_t once = kSteps * static_cast<uint64_t>(seen.count()) * 4;  // (2 − 1)·Φ·e of one group of two
    EXPECT_EQ(bytes(seen, Op::reduce_scatter, "world/0"), 2 * once) << method;
    EXPECT_EQ(bytes(seen, Op::all_reduce, "world/1"), 2 * once) << method;
    EXPECT_EQ(bytes(seen, Op::all_reduce) + bytes(seen, Op::reduce_scatter), 4 * once) << method << ": elsewhere too";
    if (std::string(method) != "zero3") {
      EXPECT_EQ(bytes(seen, Op::all_gather, "world/0"), 2 * once) << method;
    }
  }
}

}  // namespace
}  // namespace esp::parity
