#include "esp/parallel/tp/stream_rows.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace esp::parallel {
namespace {

using Runs = std::vector<std::tuple<int64_t, int64_t, int64_t>>;

Runs runs_of(const StreamRows& rows) {
  Runs runs;
  rows.for_each_run([&](int64_t row, int64_t global, int64_t count) { runs.emplace_back(row, global, count); });
  return runs;
}

TEST(StreamRows, AllRowsAreOneRun) {
  EXPECT_EQ(runs_of({0, 24, 8, 5, nullptr}), (Runs{{0, 40, 24}}));
}

TEST(StreamRows, APieceOfTheRowsIsOneRunAcrossSequences) {
  EXPECT_EQ(runs_of({12, 12, 8, 5, nullptr}), (Runs{{0, 52, 12}}));
}

TEST(StreamRows, ZigzagTokensAreTwoRunsASequence) {
  const nn::TokenMap map{{{2, 2}, {12, 2}}, 16};
  EXPECT_EQ(runs_of({0, 8, 4, 1, &map}), (Runs{{0, 18, 2}, {2, 28, 2}, {4, 34, 2}, {6, 44, 2}}));
  EXPECT_EQ(runs_of({3, 4, 4, 1, &map}), (Runs{{0, 29, 1}, {1, 34, 2}, {3, 44, 1}}));
}

// The last tokens of one sequence and the first of the next are neighbours in the batch.
TEST(StreamRows, NeighboursOfTwoSequencesAreOneRun) {
  const nn::TokenMap map{{{0, 2}, {6, 2}}, 8};
  EXPECT_EQ(runs_of({0, 8, 4, 0, &map}), (Runs{{0, 0, 2}, {2, 6, 4}, {6, 14, 2}}));
}

}  // namespace
}  // namespace esp::parallel
