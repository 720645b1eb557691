#include "esp/parallel/tp/stream_rows.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace esp::parallel {
namespace {

using RowRanges = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

RowRanges ranges_of(const StreamRows& rows) {
  RowRanges ranges;
  rows.for_each_range([&](int64_t row, int64_t global, int64_t count) { ranges.emplace_back(row, global, count); });
  return ranges;
}

TEST(StreamRows, MapsAllRowsToOneContiguousRange) {
  EXPECT_EQ(ranges_of({0, 24, 8, 5, nullptr}), (RowRanges{{0, 40, 24}}));
}

TEST(StreamRows, MapsRowsOfTwoSequencesToOneContiguousRange) {
  EXPECT_EQ(ranges_of({12, 12, 8, 5, nullptr}), (RowRanges{{0, 52, 12}}));
}

TEST(StreamRows, MapsZigzagTokensToTwoContiguousRangesPerSequence) {
  const nn::TokenMap map{{{2, 2}, {12, 2}}, 16};
  EXPECT_EQ(ranges_of({0, 8, 4, 1, &map}), (RowRanges{{0, 18, 2}, {2, 28, 2}, {4, 34, 2}, {6, 44, 2}}));
  EXPECT_EQ(ranges_of({3, 4, 4, 1, &map}), (RowRanges{{0, 29, 1}, {1, 34, 2}, {3, 44, 1}}));
}

// The last tokens of one sequence and the first tokens of the next are adjacent in the batch.
TEST(StreamRows, MergesAdjacentTokensOfTwoSequencesIntoOneContiguousRange) {
  const nn::TokenMap map{{{0, 2}, {6, 2}}, 8};
  EXPECT_EQ(ranges_of({0, 8, 4, 0, &map}), (RowRanges{{0, 0, 2}, {2, 6, 4}, {6, 14, 2}}));
}

}  // namespace
}  // namespace esp::parallel
