#include "esp/sync/prefetch_window/window_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "esp/base/rng.h"

namespace esp::sync {
namespace {

std::vector<LayerTimes> alike(size_t num, const LayerTimes& one) {
  return std::vector<LayerTimes>(num, one);
}

uint64_t most_bytes(const std::vector<LayerTimes>& layers, int64_t num) {
  std::vector<uint64_t> sizes;
  for (const LayerTimes& layer : layers) sizes.push_back(layer.bytes);
  std::sort(sizes.rbegin(), sizes.rend());
  uint64_t sum = 0;
  for (size_t i = 0; i < std::min(sizes.size(), static_cast<size_t>(num)); ++i) sum += sizes[i];
  return sum;
}

TEST(WindowPlan, FetchesOneLayerAheadWhereComputeCoversIt) {
  const auto layers = alike(12, {2, 3, 6, 1, 100});
  const WindowPlan plan = least_window(layers, 0);
  EXPECT_EQ(plan.window, 1);
  EXPECT_EQ(plan.stall_ms, 0);
  EXPECT_EQ(simulate_window(layers, 1).peak_bytes, 200u);
  EXPECT_GT(simulate_window(layers, 0).stall_ms, 0);
}

// One slow layer in the middle: the compute of two layers covers its fetch; the compute of one layer does not.
TEST(WindowPlan, FetchesEarlierForASlowLayer) {
  auto layers = alike(10, {1, 3, 6, 1, 100});
  layers[5].fetch_ms = 5;
  const WindowPlan plan = least_window(layers, 0);
  EXPECT_EQ(plan.window, 2);
  EXPECT_EQ(simulate_window(layers, 2).stall_ms, 0);
  // forward stalls 2 ms (fetch 5, compute 3); backward computes 6 ms, which covers the fetch
  EXPECT_EQ(simulate_window(layers, 1).stall_ms, 2);
  EXPECT_TRUE(window_rule(layers, 2));
  EXPECT_FALSE(window_rule(layers, 1));
}

// The compute of three layers covers each fetch, so the rule for single fetches (window_rule) would give 3. But fetches
// share one link and queue: stalls end only when most layers stay on the device.
TEST(WindowPlan, SharesOneLinkBetweenFetches) {
  const auto layers = alike(12, {3, 1, 1, 0, 100});
  EXPECT_TRUE(window_rule(layers, 3));
  EXPECT_GT(simulate_window(layers, 3).stall_ms, 0);
  const WindowPlan plan = least_window(layers, 0);
  EXPECT_GT(plan.window, 3);
  EXPECT_EQ(simulate_window(layers, plan.window).stall_ms, 0);
  EXPECT_GT(simulate_window(layers, plan.window - 1).stall_ms, 0);
}

TEST(WindowPlan, WaitsForGradientOffloadBeforeReusingASlot) {
  const auto quick = alike(10, {2, 3, 3, 0, 100}), slow = alike(10, {2, 3, 3, 4, 100});
  EXPECT_EQ(simulate_window(quick, 1).stall_ms, 0);
  EXPECT_GT(simulate_window(slow, 1).stall_ms, 0);
  EXPECT_GT(least_window(slow, 0).window, 1);
}

TEST(WindowPlan, StaysWithinTheBudgetAndReportsStalls) {
  auto layers = alike(10, {1, 3, 6, 1, 100});
  layers[5].fetch_ms = 5;
  const WindowPlan tight = least_window(layers, 299);
  EXPECT_EQ(tight.window, 1);
  EXPECT_TRUE(tight.fits);
  EXPECT_TRUE(tight.short_of_memory);
  EXPECT_EQ(tight.stall_ms, 2);
  EXPECT_EQ(least_window(layers, 300).window, 2);
  EXPECT_FALSE(least_window(layers, 199).fits);
}

TEST(WindowPlan, FindsTheSmallestWindowWithoutStalls) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<LayerTimes> layers(3 + seed % 14);
    const auto random = [&](size_t i, uint64_t what) {
      return static_cast<double>(random_bits(seed, what, i) % 1000) / 100;
    };
    for (size_t i = 0; i < layers.size(); ++i)
      layers[i] = {random(i, 1) + 0.1, random(i, 2) + 0.5, random(i, 3) + 1, random(i, 4) / 4,
                   1 + random_bits(seed, 5, i) % 100};
    const WindowPlan plan = least_window(layers, 0);
    EXPECT_EQ(simulate_window(layers, plan.window).stall_ms, 0) << "seed " << seed;
    EXPECT_TRUE(window_rule(layers, plan.window)) << "seed " << seed;
    for (int64_t m = 0; m < plan.window; ++m) EXPECT_GT(simulate_window(layers, m).stall_ms, 0) << "seed " << seed;
    EXPECT_LE(simulate_window(layers, plan.window).peak_bytes, most_bytes(layers, plan.window + 1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace esp::sync
