// Memory of model states by category, from the account of each rank's pool, in bf16 with AdamW: 16Φ whole, of which the
// stages share 12, 14 and 16. What comes and goes is of category buffer and has bounds of its own.
#include <gtest/gtest.h>

#include <algorithm>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using device::MemoryCategory;

constexpr double kBf16 = 2;

uint64_t use(const RankSeen& rank, MemoryCategory category) {
  return rank.uses[static_cast<size_t>(category)].current;
}
uint64_t peak(const RankSeen& rank, MemoryCategory category) {
  return rank.uses[static_cast<size_t>(category)].peak;
}

struct Row {
  const char* method;
  double parameter[2], gradient[2], optimizer[2];  // bytes per parameter: on every rank, and shared
};
const Row kRows[] = {{"allreduce", {2, 0}, {2, 0}, {12, 0}},
                     {"zero1", {2, 0}, {2, 0}, {0, 12}},
                     {"zero2", {2, 0}, {0, 2}, {0, 12}},
                     {"zero3", {0, 2}, {0, 2}, {0, 12}}};

Seen run(int ranks, const char* method, const Overrides& more = {}) {
  Plan plan;
  plan.ranks = ranks;
  plan.steps = 4;
  plan.overrides = tiny({"train.precision=bf16", "model.layers=6", fmt::format("sync.method={}", method)});
  plan.overrides.insert(plan.overrides.end(), more.begin(), more.end());
  return train_ranks(plan);
}

int64_t largest(const Seen& seen) {
  return *std::max_element(seen.units.begin(), seen.units.end());
}

TEST(Memory, OfModelStatesIsWhatTheStagesShare) {
  for (const int ranks : {1, 2, 4})
    for (const Row& row : kRows) {
      const Seen seen = run(ranks, row.method);
      const auto count = static_cast<double>(seen.count());
      const auto expect = [&](const RankSeen& rank, MemoryCategory category, const double(&per)[2]) {
        const double wanted = per[0] * count + per[1] * count / ranks;
        EXPECT_NEAR(static_cast<double>(use(rank, category)), wanted, 0.01 * wanted)
            << row.method << " on " << ranks << ": " << name_of(category);
        EXPECT_EQ(use(rank, category), peak(rank, category)) << row.method << ": " << name_of(category);
      };
      double total = 0;
      for (const RankSeen& rank : seen.ranks) {
        expect(rank, MemoryCategory::parameter, row.parameter);
        expect(rank, MemoryCategory::gradient, row.gradient);
        expect(rank, MemoryCategory::optimizer, row.optimizer);
        for (const auto category : {MemoryCategory::parameter, MemoryCategory::gradient, MemoryCategory::optimizer})
          total += static_cast<double>(use(rank, category));
      }
      const double whole = row.parameter[0] + row.gradient[0] + row.optimizer[0];
      const double shared = row.parameter[1] + row.gradient[1] + row.optimizer[1];
      // Over all ranks there is no rounding and no padding: what is shared is there once.
      EXPECT_EQ(total, (whole * ranks + shared) * count) << row.method << " on " << ranks;
    }
}

// What the model itself keeps in buffers at its worst moment (logits) comes on top: DDP has that and nothing else.
uint64_t of_the_model(int ranks, const Overrides& more = {}) {
  return peak(run(ranks, "allreduce", more).ranks.front(), MemoryCategory::buffer);
}

// Buckets are views: one rank or two, the same bytes.
TEST(Memory, OfBuffersIsTheModelsOwnForWholeGradients) {
  const uint64_t model = of_the_model(2);
  for (const char* method : {"allreduce", "zero1"})
    for (const RankSeen& rank : run(2, method).ranks) {
      EXPECT_EQ(peak(rank, MemoryCategory::buffer), model) << method;
      EXPECT_EQ(use(rank, MemoryCategory::buffer), 0u) << method;
    }
  // A cast for the wire is there while it travels, and only then.
  for (const RankSeen& rank : run(2, "allreduce", {"sync.wire=fp32"}).ranks) {
    EXPECT_GT(peak(rank, MemoryCategory::buffer), 0u);
    EXPECT_EQ(use(rank, MemoryCategory::buffer), 0u);
  }
}

// Two buckets travel, one is being filled, and a tied embedding's own is open from the head to the stem.
TEST(Memory, OfStage2sBucketsIsBoundedAndGivenBack) {
  const auto model = static_cast<double>(of_the_model(2));
  const Seen seen = run(2, "zero2");
  const double bucket = 0.012 * (1 << 20), table = 251 * 21 * kBf16;
  for (const RankSeen& rank : seen.ranks) {
    const auto most = static_cast<double>(peak(rank, MemoryCategory::buffer));
    RecordProperty("buckets", fmt::format("{:.2f}", (most - model) / bucket));
    EXPECT_LE(most - model, 3 * bucket + table);
    EXPECT_EQ(use(rank, MemoryCategory::buffer), 0u);
  }
}

// prefetch + 1 units of values; of gradients two units that travel, one that is being filled and a tied stem's.
TEST(Memory, OfStage3sWindowIsBoundedAndGivenBack) {
  for (const char* tied : {"true", "false"})
    for (const int prefetch : {0, 1, 2}) {
      const Overrides shape = {fmt::format("model.tie_embeddings={}", tied), fmt::format("sync.prefetch={}", prefetch)};
      const auto model = static_cast<double>(of_the_model(2, shape));
      const Seen seen = run(2, "zero3", shape);
      const double unit = kBf16 * static_cast<double>(largest(seen));
      for (const RankSeen& rank : seen.ranks) {
        const auto most = static_cast<double>(peak(rank, MemoryCategory::buffer));
        RecordProperty(fmt::format("units_tied_{}_prefetch_{}", tied, prefetch),
                       fmt::format("{:.2f}", (most - model) / unit));
        EXPECT_LE(most - model, (prefetch + 1 + 4) * unit) << "prefetch " << prefetch;
        EXPECT_EQ(use(rank, MemoryCategory::buffer), 0u) << "prefetch " << prefetch;
      }
    }
}

// While only forward runs there are no gradients: the window of values alone.
uint64_t most_in_evaluation(const char* method, int prefetch, Seen& seen) {
  Plan plan;
  plan.ranks = 2;
  plan.overrides = tiny({"train.precision=bf16", "model.layers=6", "data.val_fraction=0.2",
                         fmt::format("sync.method={}", method), fmt::format("sync.prefetch={}", prefetch)});
  std::vector<uint64_t> most(2);
  plan.after = [&](int rank, int step, train::Engine& engine) {
    engine.evaluate(1);  // notes the order of uses
    if (step < 2) return;
    engine.account().reset_peaks();
    engine.evaluate(2);
    most[static_cast<size_t>(rank)] = engine.account().use(MemoryCategory::buffer).peak;
  };
  seen = train_ranks(plan);
  return std::max(most[0], most[1]);
}

TEST(Memory, OfStage3sForwardIsTheWindowOfValues) {
  for (const int prefetch : {0, 1, 2}) {
    Seen seen;
    const auto model = static_cast<double>(most_in_evaluation("allreduce", prefetch, seen));
    const auto most = static_cast<double>(most_in_evaluation("zero3", prefetch, seen));
    EXPECT_GT(most, model) << "prefetch " << prefetch;
    EXPECT_LE(most - model, (prefetch + 1) * kBf16 * static_cast<double>(largest(seen))) << "prefetch " << prefetch;
  }
}

}  // namespace
}  // namespace esp::parity
