#include "esp/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/data/permutation.h"

namespace esp::data {
namespace {

TEST(Permutation, IsBijectiveAndInvertibleForSmallSizes) {
  for (uint64_t n = 1; n <= 600; ++n) {
    Permutation permutation(n, 7, n % 3);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      uint64_t element = permutation(i);
      ASSERT_LT(element, n);
      ASSERT_FALSE(seen[element]) << n;
      seen[element] = true;
      ASSERT_EQ(permutation.inverse(element), i);
    }
  }
}

TEST(Permutation, StaysInRangeAndInvertsAtLargestSizes) {
  for (uint64_t n : {(uint64_t{1} << 62) + 1, UINT64_MAX, uint64_t{1} << 32, (uint64_t{1} << 32) + 1}) {
    Permutation permutation(n, 1, 2);
    for (uint64_t i : {uint64_t{0}, uint64_t{1}, n / 2, n - 1}) {
      ASSERT_LT(permutation(i), n);
      ASSERT_EQ(permutation.inverse(permutation(i)), i);
    }
  }
}

// Over many keys every (position, element) pair is equally likely. The chi-squared statistic has (n-1)^2 degrees of
// freedom. The keys are fixed, so the result is deterministic.
TEST(Permutation, MapsEachIndexUniformlyOverManyKeys) {
  for (uint64_t n : {2u, 3u, 5u, 16u, 17u}) {
    const int trials = 4000;
    std::vector<int> counts(n * n);
    for (int t = 0; t < trials; ++t) {
      Permutation permutation(n, static_cast<uint64_t>(t), 11);
      for (uint64_t i = 0; i < n; ++i) ++counts[i * n + permutation(i)];
    }
    double expected = double(trials) / double(n), statistic = 0;
    for (int count : counts) statistic += (count - expected) * (count - expected) / expected;
    double freedom = double((n - 1) * (n - 1));
    EXPECT_LT(statistic, freedom + 6 * std::sqrt(2 * freedom)) << n;
  }
}

TEST(Permutation, OrderDependsOnSeedAndStream) {
  auto order = [](uint64_t seed, uint64_t stream) {
    Permutation permutation(100, seed, stream);
    std::vector<uint64_t> all(100);
    for (uint64_t i = 0; i < 100; ++i) all[i] = permutation(i);
    return all;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(2, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
}

TEST(WindowSampler, VisitsEveryWindowOncePerEpochInNewOrder) {
  WindowSampler sampler(1003, {.length = 10, .seed = 5});
  ASSERT_EQ(sampler.windows_per_epoch(), 100u);
  std::vector<std::vector<uint64_t>> epochs;
  for (uint64_t epoch : {0u, 1u, 1000000u}) {
    std::vector<uint64_t> firsts;
    for (uint64_t i = 0; i < 100; ++i) {
      auto window = sampler.window(epoch * 100 + i);
      EXPECT_EQ(window.length, 10u);
      EXPECT_EQ(sampler.epoch_of(epoch * 100 + i), epoch);
      firsts.push_back(window.first);
    }
    epochs.push_back(firsts);
    std::sort(firsts.begin(), firsts.end());
    for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(firsts[i], i * 10);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[0], epochs[2]);
}

TEST(WindowSampler, ShiftsWindowsPerEpochWithinBounds) {
  WindowSampler sampler(1000, {.length = 16, .seed = 9, .shift = true});
  const uint64_t n = sampler.windows_per_epoch();
  ASSERT_EQ(n, (1000u - 16u) / 16u);
  std::set<uint64_t> shifts;
  for (uint64_t epoch = 0; epoch < 40; ++epoch) {
    std::set<uint64_t> firsts;
    for (uint64_t i = 0; i < n; ++i) {
      uint64_t first = sampler.window(epoch * n + i).first;
      EXPECT_LE(first + 16, 999u);
      firsts.insert(first);
    }
    ASSERT_EQ(firsts.size(), n);
    EXPECT_EQ(*firsts.rbegin() - *firsts.begin(), (n - 1) * 16);
    shifts.insert(*firsts.begin());
  }
  EXPECT_GT(shifts.size(), 8u);
}

TEST(WindowSampler, SequentialPassEndsWithShortWindowAndRepeats) {
  WindowSampler sampler(24, {.length = 10, .order = SampleOrder::sequential});
  ASSERT_EQ(sampler.windows_per_epoch(), 3u);
  EXPECT_EQ(sampler.window(0).first, 0u);
  EXPECT_EQ(sampler.window(2).first, 20u);
  EXPECT_EQ(sampler.window(2).length, 3u);  // token 23 is only a target
  EXPECT_EQ(sampler.window(3).first, 0u);
}

TEST(WindowSampler, RandomOrderReachesEveryOffset) {
  WindowSampler sampler(20, {.length = 8, .seed = 3, .order = SampleOrder::random});
  std::map<uint64_t, int> counts;
  for (uint64_t i = 0; i < 12000; ++i) {
    auto window = sampler.window(1'000'000'000 + i);
    ASSERT_LE(window.first + 8, 19u);
    ++counts[window.first];
  }
  ASSERT_EQ(counts.size(), 12u);
  for (auto [first, count] : counts) EXPECT_NEAR(count, 1000, 200) << first;
}

TEST(WindowSampler, RejectsDataShorterThanWindow) {
  EXPECT_NO_THROW(WindowSampler(9, {.length = 8}));
  EXPECT_THROW(WindowSampler(8, {.length = 8}), UsageError);
  EXPECT_THROW(WindowSampler(1, {.length = 8, .order = SampleOrder::sequential}), UsageError);
}

// A run of one epoch is interrupted more than twenty times and continues with other ranks and batches each time. All
// parts together read every window exactly once.
TEST(WindowSampler, CoversEpochOnceWhenLayoutChanges) {
  const uint64_t windows = 4096;
  WindowSampler sampler(windows * 4 + 1, {.length = 4, .seed = 77});
  std::vector<int> seen(windows);
  uint64_t next = 0, draw = 0;
  while (next < windows) {
    uint64_t world = 1 + random_bits(1, 1, draw++) % 8, micro = 1 + random_bits(1, 1, draw++) % 5;
    uint64_t steps = 1 + random_bits(1, 1, draw++) % 12;
    for (uint64_t step = 0; step < steps; ++step) {
      for (uint64_t rank = 0; rank < world; ++rank)
        for (uint64_t row = 0; row < micro; ++row)
          if (uint64_t sample = next + rank * micro + row; sample < windows) ++seen[sampler.window(sample).first / 4];
      next += world * micro;
    }
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  EXPECT_GT(draw, 60u);  // more than twenty layouts
}

TEST(ItemSampler, VisitsAllItems) {
  ItemSampler shuffled(50, 1, SampleOrder::shuffled), sequential(50, 1, SampleOrder::sequential),
      random(50, 1, SampleOrder::random);
  std::set<uint64_t> seen, drawn;
  for (uint64_t i = 50; i < 100; ++i) {
    seen.insert(shuffled.item(i));
    EXPECT_EQ(sequential.item(i), i - 50);
    drawn.insert(random.item(i));
  }
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_LT(drawn.size(), 50u);
  EXPECT_THROW(ItemSampler(0, 1, SampleOrder::shuffled), UsageError);
}

TEST(DistributedSampler, MatchesLectureExample) {
  EXPECT_EQ(DistributedSampler(10000, 2, 0, 32, 0).steps_per_epoch(), 157u);
  EXPECT_EQ(DistributedSampler(10000, 8, 7, 32, 0).steps_per_epoch(), 40u);
  EXPECT_EQ(DistributedSampler(10000, 1, 0, 32, 0).steps_per_epoch(), 313u);
}

TEST(DistributedSampler, PartitionsEpochAndPadsByWrapAround) {
  const int world = 4;
  const uint64_t items = 102;  // 26 items per rank, so two items occur twice
  std::vector<uint64_t> dealt(104), step_items;
  std::map<uint64_t, int> times;
  for (int rank = 0; rank < world; ++rank) {
    DistributedSampler sampler(items, world, rank, 8, 42);
    ASSERT_EQ(sampler.items_per_rank(), 26u);
    uint64_t place = 0;
    for (uint64_t step = 0; step < sampler.steps_per_epoch(); ++step) {
      sampler.batch(3, step, step_items);
      EXPECT_EQ(step_items.size(), step < 3 ? 8u : 2u);
      for (uint64_t item : step_items) {
        EXPECT_EQ(item, sampler.item(3, place));
        dealt[place++ * world + static_cast<uint64_t>(rank)] = item;
        ++times[item];
      }
    }
  }
  EXPECT_EQ(times.size(), items);
  EXPECT_EQ(dealt[102], dealt[0]);
  EXPECT_EQ(dealt[103], dealt[1]);
  EXPECT_NE(DistributedSampler(items, 1, 0, 8, 42).item(0, 0), DistributedSampler(items, 1, 0, 8, 42).item(1, 0));
  EXPECT_EQ(DistributedSampler(items, 1, 0, 8, 42).item(1, 5), DistributedSampler(items, 1, 0, 8, 43).item(0, 5));
}

TEST(SampleOrder, ParsesNames) {
  EXPECT_EQ(parse_sample_order("sequential"), SampleOrder::sequential);
  EXPECT_THROW(parse_sample_order("shufled"), UsageError);
}

}  // namespace
}  // namespace esp::data
