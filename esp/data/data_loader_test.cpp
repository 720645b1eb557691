#include "esp/data/data_loader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include "esp/base/error.h"
#include "esp/base/rng.h"

namespace esp::data {
namespace {

// Writes the sample index into each row; can fail at one sample, and can be slow.
class SampleIndexObjective : public Objective {
 public:
  BatchShape shape() const override { return {1, 0, 1}; }
  uint64_t samples_per_epoch() const override { return 1000; }
  void fill(uint64_t sample, int64_t at, Batch& batch) const override {
    if (sample == fails_at) throw IoError("sample cannot be read");
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    batch.inputs[static_cast<size_t>(at)] = static_cast<int32_t>(sample % 1'000'000);
    batch.targets[static_cast<size_t>(at)] = 0;
    ++batch.counted;
  }
  uint64_t fails_at = UINT64_MAX;
  std::atomic<bool> held = false;
};

std::vector<uint64_t> samples(const Batch* batch) {
  return batch ? batch->samples : std::vector<uint64_t>{};
}

TEST(DataLoader, InterleavesSamplesOverRanks) {
  SampleIndexObjective objective;
  DataLoader first(objective, {.B = 2, .world = 3, .rank = 0, .first_sample = 100});
  DataLoader last(objective, {.B = 2, .world = 3, .rank = 2, .first_sample = 100});
  EXPECT_EQ(samples(first.next()), (std::vector<uint64_t>{100, 101}));
  EXPECT_EQ(first.position(), 106u);
  EXPECT_EQ(samples(first.next()), (std::vector<uint64_t>{106, 107}));
  EXPECT_EQ(samples(last.next()), (std::vector<uint64_t>{104, 105}));
  EXPECT_EQ(samples(last.next()), (std::vector<uint64_t>{110, 111}));
}

TEST(DataLoader, KeepsBatchUnchangedUntilNextCall) {
  SampleIndexObjective objective;
  DataLoader loader(objective, {.B = 4, .depth = 3});
  for (uint64_t step = 0; step < 200; ++step) {
    const Batch* batch = loader.next();
    ASSERT_EQ(batch->first_sample, step * 4);
    if (step % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lets the thread prefetch
    for (size_t i = 0; i < 4; ++i) ASSERT_EQ(batch->inputs[i], static_cast<int32_t>(step * 4 + i));
    ASSERT_EQ(batch->counted, 4);
  }
}

TEST(DataLoader, SeeksToAnySample) {
  SampleIndexObjective objective;
  DataLoader loader(objective, {.B = 1});
  for (uint64_t turn = 0; turn < 300; ++turn) {
    uint64_t to = random_bits(1, 2, turn) % 4'000'000'000;
    loader.seek(to);
    EXPECT_EQ(loader.position(), to);
    for (uint64_t i = 0; i < turn % 4; ++i) ASSERT_EQ(loader.next()->first_sample, to + i);
  }
}

TEST(DataLoader, EndsWithPartialBatchAndRestartsAfterSeek) {
  SampleIndexObjective objective;
  DataLoader loader(objective, {.B = 4, .first_sample = 0, .end_sample = 10});
  EXPECT_EQ(loader.next()->B, 4);
  EXPECT_EQ(loader.next()->B, 4);
  EXPECT_EQ(loader.next()->B, 2);
  EXPECT_EQ(loader.next(), nullptr);
  EXPECT_EQ(loader.next(), nullptr);
  loader.seek(8);
  EXPECT_EQ(samples(loader.next()), (std::vector<uint64_t>{8, 9}));
  EXPECT_EQ(loader.next(), nullptr);
}

TEST(DataLoader, ThrowsAfterDeliveringEarlierBatches) {
  SampleIndexObjective objective;
  objective.fails_at = 6;
  DataLoader loader(objective, {.B = 2, .depth = 4});
  for (int i = 0; i < 3; ++i) ASSERT_NE(loader.next(), nullptr);
  EXPECT_THROW(loader.next(), IoError);
  EXPECT_THROW(loader.next(), IoError);
  loader.seek(8);
  EXPECT_EQ(loader.next()->first_sample, 8u);
}

TEST(DataLoader, ThrowsAtTimeout) {
  SampleIndexObjective objective;
  objective.held = true;
  DataLoader loader(objective, {.B = 1, .timeout = std::chrono::milliseconds(20)});
  EXPECT_THROW(loader.next(), IoError);
  objective.held = false;
  loader.seek(0);
  for (int tries = 0; tries < 100; ++tries) {  // on a busy machine the first calls may time out too
    try {
      EXPECT_EQ(loader.next()->first_sample, 0u);
      return;
    } catch (const IoError&) {
    }
  }
  FAIL() << "100 calls of next() without a batch";
}

TEST(DataLoader, StopsThreadWhenDestroyedDuringFill) {
  SampleIndexObjective objective;
  for (int i = 0; i < 100; ++i) {
    DataLoader loader(objective, {.B = 3, .depth = 1 + i % 4});
    if (i % 2) loader.next();
  }
}

// The layout changes at random within an epoch; the loaders of all ranks together return every sample exactly once.
TEST(DataLoader, CoversEpochOnceWhenLayoutChanges) {
  SampleIndexObjective objective;
  std::vector<int> seen(1000);
  uint64_t position = 0, draw = 0;
  for (int layout = 0; position < 1000; ++layout) {
    int world = 1 + static_cast<int>(random_bits(5, 0, draw++) % 4);
    auto B = static_cast<int64_t>(1 + random_bits(5, 0, draw++) % 4);
    uint64_t steps = 1 + random_bits(5, 0, draw++) % 6, after = position;
    for (int rank = 0; rank < world; ++rank) {
      DataLoader loader(objective,
                        {.B = B, .world = world, .rank = rank, .first_sample = position, .end_sample = 1000});
      for (uint64_t step = 0; step < steps; ++step)
        for (uint64_t sample : samples(loader.next())) ++seen[sample];
      after = std::max(after, position + steps * static_cast<uint64_t>(B * world));
    }
    position = after;
  }
  for (int times : seen) ASSERT_EQ(times, 1);
}

}  // namespace
}  // namespace esp::data
