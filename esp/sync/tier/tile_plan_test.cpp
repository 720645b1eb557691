#include "esp/sync/tier/tile_plan.h"

#include <gtest/gtest.h>

namespace esp::sync {
namespace {

// Two units: 10 elements (6 with weight decay, 4 without) and 8 elements (all with weight decay).
void build(nn::ParameterList& list) {
  list.begin_unit("a");
  list.add("a.w", {6}, {}, true);
  list.add("a.b", {4}, {}, false);
  list.begin_unit("b");
  list.add("b.w", {8}, {}, true);
}

std::string text_of(const TilePlan& plan) {
  std::string text;
  for (const TilePlan::Tile& tile : plan.tiles) {
    text += fmt::format("[{},{}):", tile.begin, tile.end);
    for (const auto& range : tile.update_ranges)
      text += fmt::format(" {}-{}{}", range.begin, range.end, !range.updated ? "gap" : range.decay ? "decay" : "");
    for (const auto& segment : tile.segments)
      text += fmt::format(" r{}+{}@{}-{}", segment.range, segment.first, segment.begin, segment.end);
    text += "\n";
  }
  return text;
}

TEST(TilePlanTest, TilesSpanOwnedRangesAndMergeElementsWithEqualDecay) {
  nn::ParameterList list;
  build(list);
  const std::vector<optim::OptimizerShard> owned{{{0, 2, 10}, {}, {}}, {{1, 0, 5}, {}, {}}, {{1, 5, 8}, {}, {}}};
  const TilePlan plan = plan_tiles(list, owned, 7);
  EXPECT_EQ(plan.count, 16);
  EXPECT_EQ(plan.largest, 7);
  EXPECT_EQ(plan.begins, (std::vector<int64_t>{0, 8, 13}));
  EXPECT_EQ(text_of(plan),
            "[0,7): 0-4decay 4-7 r0+0@0-7\n"
            "[7,14): 7-8 8-14decay r0+7@7-8 r1+0@8-13 r2+0@13-14\n"
            "[14,16): 14-16decay r2+1@14-16\n");
}

TEST(TilePlanTest, ElementsOutsideParametersAreGaps) {
  nn::ParameterList list;
  build(list);
  const std::vector<optim::OptimizerShard> owned{{{0, 8, 13}, {}, {}}, {{1, 6, 9}, {}, {}}};
  EXPECT_EQ(text_of(plan_tiles(list, owned, 100)), "[0,8): 0-2 2-5gap 5-7decay 7-8gap r0+0@0-5 r1+0@5-8\n");
}

TEST(TilePlanTest, SplitAtRangesKeepsEachTileInsideOneRange) {
  nn::ParameterList list;
  build(list);
  const std::vector<optim::OptimizerShard> owned{{{0, 2, 10}, {}, {}}, {{1, 0, 5}, {}, {}}, {{1, 5, 8}, {}, {}}};
  EXPECT_EQ(text_of(plan_tiles(list, owned, 7, true)),
            "[0,7): 0-4decay 4-7 r0+0@0-7\n"
            "[7,8): 7-8 r0+7@7-8\n"
            "[8,13): 8-13decay r1+0@8-13\n"
            "[13,16): 13-16decay r2+0@13-16\n");
}

TEST(TilePlanTest, HasNoTilesWithoutOwnedElements) {
  nn::ParameterList list;
  build(list);
  const TilePlan plan = plan_tiles(list, {}, 7);
  EXPECT_TRUE(plan.tiles.empty());
  EXPECT_EQ(plan.count, 0);
}

}  // namespace
}  // namespace esp::sync
