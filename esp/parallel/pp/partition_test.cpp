#include "esp/parallel/pp/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "esp/base/error.h"
#include "esp/parallel/pp/simulate.h"

namespace esp::parallel {
namespace {

// Minimal largest part cost by exhaustive search.
double cheapest(std::span<const double> costs, int pieces) {
  if (pieces == 1) {
    const int whole[] = {0, static_cast<int>(costs.size())};
    return max_piece_cost(costs, whole);
  }
  double best = std::numeric_limits<double>::infinity(), first = 0;
  for (size_t i = 1; i + static_cast<size_t>(pieces) - 1 <= costs.size(); ++i) {
    first += costs[i - 1];
    best = std::min(best, std::max(first, cheapest(costs.subspan(i), pieces - 1)));
  }
  return best;
}

TEST(LinearPartition, MatchesExhaustiveSearch) {
  std::mt19937 random(1);
  for (int units = 1; units <= 12; ++units)
    for (int pieces = 1; pieces <= std::min(units, 4); ++pieces)
      for (int trial = 0; trial < 20; ++trial) {
        std::vector<double> costs;
        for (int i = 0; i < units; ++i) costs.push_back(static_cast<double>(random() % 10));
        const std::vector<int> cuts = linear_partition(costs, pieces);
        ASSERT_EQ(cuts.size(), static_cast<size_t>(pieces) + 1);
        EXPECT_EQ(cuts.front(), 0);
        EXPECT_EQ(cuts.back(), units);
        EXPECT_EQ(std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()), cuts.end());
        EXPECT_EQ(max_piece_cost(costs, cuts), cheapest(costs, pieces));
      }
}

TEST(LinearPartition, ChoosesMostEvenOptimalPartition) {
  EXPECT_EQ(linear_partition(std::vector<double>(10, 1), 4), (std::vector<int>{0, 2, 4, 7, 10}));
  EXPECT_EQ(linear_partition(std::vector<double>(7, 0.1), 7), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

// The head costs as much as four blocks, so its stage gets fewer blocks and the step is shorter.
TEST(LinearPartition, GivesFewerBlocksToStageWithCostlyHead) {
  std::vector<double> costs(13, 1);
  costs.back() = 4;
  const std::vector<int> cuts = linear_partition(costs, 4);
  EXPECT_EQ(max_piece_cost(costs, cuts), 4);
  const int by_number[] = {0, 4, 7, 10, 13};
  const PipelineSchedule schedule = make_schedule("1f1b", {4, 1, 8});
  const auto makespan = [&](std::span<const int> of) {
    PipelineCosts pipeline;
    for (size_t q = 0; q < 4; ++q) {
      double sum = 0;
      for (int i = of[q]; i < of[q + 1]; ++i) sum += costs[static_cast<size_t>(i)];
      pipeline.virtual_stages.push_back({sum, sum, sum});
    }
    return simulate(schedule, pipeline).makespan;
  };
  EXPECT_LT(makespan(cuts), makespan(by_number));
}

TEST(LinearPartition, RejectsMorePartsThanUnits) {
  EXPECT_THROW(linear_partition(std::vector<double>(3, 1), 4), UsageError);
  EXPECT_THROW(linear_partition(std::vector<double>(3, 1), 0), UsageError);
}

}  // namespace
}  // namespace esp::parallel
