// Memory of the model states by category, from each rank's memory pool, in bf16 with AdamW. All states take 16Φ bytes;
// ZeRO stages 1, 2 and 3 shard 12Φ, 14Φ and 16Φ of them. Temporary tensors are counted in the category buffer, which
// has separate bounds.
#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using device::MemoryCategory;

constexpr double kBf16Bytes = 2;

uint64_t current_bytes(const RankResult& rank, MemoryCategory category) {
  return rank.uses[static_cast<size_t>(category)].current;
}
uint64_t peak_bytes(const RankResult& rank, MemoryCategory category) {
  return rank.uses[static_cast<size_t>(category)].peak;
}

struct ModelStateBytes {
  const char* method;
  double parameter[2], gradient[2], optimizer[2];  // bytes per parameter: {on every rank, sharded over the ranks}
};
const ModelStateBytes kModelStates[] = {{"allreduce", {2, 0}, {2, 0}, {12, 0}},
                                        {"zero1", {2, 0}, {2, 0}, {0, 12}},
                                        {"zero2", {2, 0}, {0, 2}, {0, 12}},
                                        {"zero3", {0, 2}, {0, 2}, {0, 12}}};

RunResult run(int ranks, const char* method, const Overrides& more = {}) {
  RunSpec spec;
  spec.ranks = ranks;
  spec.steps = 4;
  spec.overrides = tiny_model({"train.precision=bf16", "model.layers=6", fmt::format("sync.method={}", method)});
  spec.overrides.insert(spec.overrides.end(), more.begin(), more.end());
  return train_ranks(spec);
}

int64_t largest_unit(const RunResult& seen) {
  return *std::max_element(seen.units.begin(), seen.units.end());
}

TEST(ZeroMemory, ModelStatesMatchTheFormulaOfEachStage) {
  for (const int ranks : {1, 2, 4})
    for (const ModelStateBytes& row : kModelStates) {
      const RunResult seen = run(ranks, row.method);
      const auto count = static_cast<double>(seen.count());
      const auto expect = [&](const RankResult& rank, MemoryCategory category, const double(&per)[2]) {
        const double expected = per[0] * count + per[1] * count / ranks;
        EXPECT_NEAR(static_cast<double>(current_bytes(rank, category)), expected, 0.01 * expected)
            << row.method << " on " << ranks << ": " << name_of(category);
        EXPECT_EQ(current_bytes(rank, category), peak_bytes(rank, category)) << row.method << ": " << name_of(category);
      };
      double total = 0;
      for (const RankResult& rank : seen.ranks) {
        expect(rank, MemoryCategory::parameter, row.parameter);
        expect(rank, MemoryCategory::gradient, row.gradient);
        expect(rank, MemoryCategory::optimizer, row.optimizer);
        for (const auto category : {MemoryCategory::parameter, MemoryCategory::gradient, MemoryCategory::optimizer})
          total += static_cast<double>(current_bytes(rank, category));
      }
      const double whole = row.parameter[0] + row.gradient[0] + row.optimizer[0];
      const double shared = row.parameter[1] + row.gradient[1] + row.optimizer[1];
      // The sum over all ranks must equal the formula exactly: sharded state is stored once, without padding.
      EXPECT_EQ(total, (whole * ranks + shared) * count) << row.method << " on " << ranks;
    }
}

// Peak bytes of the buffers that the model itself needs (logits). Measured with all-reduce, which has no other buffers.
uint64_t model_buffer_bytes(int ranks, const Overrides& more = {}) {
  return peak_bytes(run(ranks, "allreduce", more).ranks.front(), MemoryCategory::buffer);
}

// Buckets are views of the gradients and need no memory.
TEST(ZeroMemory, GradientBucketsAreViewsWithAllReduceAndZero1) {
  const uint64_t model = model_buffer_bytes(2);
  for (const char* method : {"allreduce", "zero1"})
    for (const RankResult& rank : run(2, method).ranks) {
      EXPECT_EQ(peak_bytes(rank, MemoryCategory::buffer), model) << method;
      EXPECT_EQ(current_bytes(rank, MemoryCategory::buffer), 0u) << method;
    }
  // With another wire type, a copy of the gradients exists only while it is sent.
  for (const RankResult& rank : run(2, "allreduce", {"sync.wire=fp32"}).ranks) {
    EXPECT_GT(peak_bytes(rank, MemoryCategory::buffer), 0u);
    EXPECT_EQ(current_bytes(rank, MemoryCategory::buffer), 0u);
  }
}

// Bound: two buckets in flight, one being filled, and the bucket of a tied embedding. The bucket of a tied embedding
// exists from the backward of the head to the backward of the stem.
TEST(ZeroMemory, Zero2BucketsAreBoundedAndFreed) {
  const auto model = static_cast<double>(model_buffer_bytes(2));
  const RunResult seen = run(2, "zero2");
  const double bucket = 0.012 * (1 << 20), table = 251 * 21 * kBf16Bytes;
  for (const RankResult& rank : seen.ranks) {
    const auto most = static_cast<double>(peak_bytes(rank, MemoryCategory::buffer));
    RecordProperty("buckets", fmt::format("{:.2f}", (most - model) / bucket));
    EXPECT_LE(most - model, 3 * bucket + table);
    EXPECT_EQ(current_bytes(rank, MemoryCategory::buffer), 0u);
  }
}

// Bound: the weights of prefetch + 1 units, and the gradients of four units: two in flight, one being filled, and a
// tied stem.
TEST(ZeroMemory, Zero3WindowIsBoundedAndFreed) {
  for (const char* tied : {"true", "false"})
    for (const int prefetch : {0, 1, 2}) {
      const Overrides shape = {fmt::format("model.tie_embeddings={}", tied), fmt::format("sync.prefetch={}", prefetch)};
      const auto model = static_cast<double>(model_buffer_bytes(2, shape));
      const RunResult seen = run(2, "zero3", shape);
      const double unit = kBf16Bytes * static_cast<double>(largest_unit(seen));
      for (const RankResult& rank : seen.ranks) {
        const auto most = static_cast<double>(peak_bytes(rank, MemoryCategory::buffer));
        RecordProperty(fmt::format("units_tied_{}_prefetch_{}", tied, prefetch),
                       fmt::format("{:.2f}", (most - model) / unit));
        EXPECT_LE(most - model, (prefetch + 1 + 4) * unit) << "prefetch " << prefetch;
        EXPECT_EQ(current_bytes(rank, MemoryCategory::buffer), 0u) << "prefetch " << prefetch;
      }
    }
}

// Peak bytes of buffers during evaluation. Evaluation has no gradients, so only the window of weights remains.
uint64_t peak_evaluation_buffers(const char* method, int prefetch, RunResult& seen) {
  RunSpec spec;
  spec.ranks = 2;
  spec.overrides = tiny_model({"train.precision=bf16", "model.layers=6", "data.val_fraction=0.2",
                               fmt::format("sync.method={}", method), fmt::format("sync.prefetch={}", prefetch)});
  std::vector<uint64_t> most(2);
  spec.after_step = [&](int rank, int step, train::Engine& engine) {
    engine.evaluate(1);  // the first evaluation records the order of the units
    if (step < 2) return;
    engine.account().reset_peaks();
    engine.evaluate(2);
    most[static_cast<size_t>(rank)] = engine.account().use(MemoryCategory::buffer).peak;
  };
  seen = train_ranks(spec);
  return std::max(most[0], most[1]);
}

TEST(ZeroMemory, Zero3EvaluationHoldsOnlyTheWeightWindow) {
  for (const int prefetch : {0, 1, 2}) {
    RunResult seen;
    const auto model = static_cast<double>(peak_evaluation_buffers("allreduce", prefetch, seen));
    const auto most = static_cast<double>(peak_evaluation_buffers("zero3", prefetch, seen));
    EXPECT_GT(most, model) << "prefetch " << prefetch;
    EXPECT_LE(most - model, (prefetch + 1) * kBf16Bytes * static_cast<double>(largest_unit(seen)))
        << "prefetch " << prefetch;
  }
}

}  // namespace
}  // namespace esp::parity
