#include "esp/plan/search/division.h"

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/parallel/pp/partition.h"

namespace esp::plan {
namespace {

std::vector<DivisionLayer> random_layers(uint64_t seed, size_t n) {
  std::vector<DivisionLayer> layers;
  for (size_t i = 0; i < n; ++i)
    layers.push_back({0.1 + random_unit(seed, 1, i), random_unit(seed, 2, i), 0.3 * random_unit(seed, 3, i)});
  layers.back().time_s += 2;  // the last layer is expensive, because the head belongs to it
  return layers;
}

// Best step time over every division of the layers and every order of devices.
double brute_force(const std::vector<DivisionLayer>& layers, int stages, const std::vector<DevicePool>& pools,
                   int64_t m) {
  double best = std::numeric_limits<double>::infinity();
  LayerDivision division;
  std::vector<int> used(pools.size(), 0);
  const auto place = [&](const auto& self, int left) -> void {
    const auto k = static_cast<int>(division.layers.size());
    if (k == stages) {
      if (left == 0) best = std::min(best, division_s(layers, division, pools, m));
      return;
    }
    for (int n = 1; n <= left; ++n)
      for (size_t p = 0; p < pools.size(); ++p) {
        if (used[p] == pools[p].stages) continue;
        ++used[p];
        division.layers.push_back(n);
        division.pool.push_back(static_cast<int>(p));
        self(self, left - n);
        division.layers.pop_back();
        division.pool.pop_back();
        --used[p];
      }
  };
  place(place, static_cast<int>(layers.size()));
  return best;
}

TEST(LayerDivision, StepTimeEqualsBruteForceOptimum) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const auto layers = random_layers(seed, 10);
    for (const int64_t m : {1, 4, 64})
      for (const int stages : {1, 2, 3, 4}) {
        const std::vector<DevicePool> pools = {{stages, 1, 0}};
        const auto division = divide(layers, stages, pools, m);
        ASSERT_TRUE(division);
        EXPECT_NEAR(division->step_s, brute_force(layers, stages, pools, m), 1e-9) << seed << ' ' << m << ' ' << stages;
      }
  }
}

TEST(LayerDivision, PlacesStagesOnDevicesOfDifferentSpeedAndMemory) {
  int tight = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto layers = random_layers(seed, 8);
    const double room = 0.6 + 2 * random_unit(seed, 5, 0);
    const std::vector<DevicePool> pools = {{2, 1, room}, {2, 2.5, 3 * room}};
    for (const int64_t m : {1, 8}) {
      const double best = brute_force(layers, 4, pools, m);
      const auto division = divide(layers, 4, pools, m);
      ASSERT_EQ(division.has_value(), best < std::numeric_limits<double>::infinity()) << seed;
      if (!division) {
        ++tight;
        continue;
      }
      EXPECT_NEAR(division->step_s, best, 1e-9) << seed << ' ' << m;
    }
  }
  EXPECT_GT(tight, 0);  // some random problems must be infeasible, for divide() and for brute_force()
}

TEST(LayerDivision, AssignsMoreLayersToFasterDevice) {
  const std::vector<DivisionLayer> layers(12, {1, 1, 0});
  const std::vector<DevicePool> pools = {{1, 1, 0}, {1, 2, 0}};
  const auto division = divide(layers, 2, pools, 100);
  ASSERT_TRUE(division);
  for (size_t k = 0; k < 2; ++k) EXPECT_EQ(division->layers[k], division->pool[k] == 0 ? 8 : 4);
  EXPECT_DOUBLE_EQ(division->slowest_stage_s, 8);
}

// On equal devices without a memory limit, the division equals the runtime's linear partition.
TEST(LayerDivision, MatchesLinearPartitionOnEqualDevices) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto layers = random_layers(seed, 24);
    std::vector<double> costs;
    for (const DivisionLayer& one : layers) costs.push_back(one.time_s);
    for (const int stages : {2, 5, 8}) {
      const auto cuts = parallel::linear_partition(costs, stages);
      const auto division = divide(layers, stages, std::vector<DevicePool>{{stages, 1, 0}}, 1000);
      ASSERT_TRUE(division);
      EXPECT_NEAR(division->slowest_stage_s, parallel::max_piece_cost(costs, cuts), 1e-12);
    }
  }
}

TEST(LayerDivision, ErrorForTooManyStagesGivesRange) {
  const std::vector<DivisionLayer> layers(4, {1, 0, 0});
  try {
    divide(layers, 6, std::vector<DevicePool>{{8, 1, 0}}, 1);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("expected 1 to 4"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::plan
