#include "esp/launch/line_merger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace esp::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
const Clock::time_point kStart{};

TEST(LineMerger, PrefixesCompleteLinesAndBuffersPartialOnes) {
  LineMerger merger(2);
  merger.feed(1, "hel", kStart);
  EXPECT_THAT(merger.take(kStart, true), IsEmpty());
  merger.feed(1, "lo\nwor", kStart);
  EXPECT_THAT(merger.take(kStart, true), ElementsAre("[rank 1] hello\n"));
  merger.end(1, kStart);
  EXPECT_THAT(merger.take(kStart, true), ElementsAre("[rank 1] wor\n"));
}

TEST(LineMerger, PrintsLineAtOnceWhenAllRanksWroteIt) {
  LineMerger merger(3);
  for (int rank : {2, 0, 1}) merger.feed(rank, "same\n", kStart);
  EXPECT_THAT(merger.take(kStart), ElementsAre("[ranks 0-2] same\n"));
}

TEST(LineMerger, WaitsOneWindowForSameLineOfOtherRanks) {
  LineMerger merger(3);
  merger.feed(0, "x\n", kStart);
  merger.feed(2, "x\n", kStart);
  EXPECT_THAT(merger.take(kStart), IsEmpty());
  EXPECT_THAT(merger.take(kStart + LineMerger::kWindow), ElementsAre("[ranks 0,2] x\n"));
}

TEST(LineMerger, KeepsLineOrderOfEachRank) {
  LineMerger merger(2);
  merger.feed(0, "a\nb\na\n", kStart);
  merger.feed(1, "b\na\n", kStart);
  EXPECT_THAT(merger.take(kStart, true), ElementsAre("[rank 0] a\n", "[ranks 0-1] b\n", "[ranks 0-1] a\n"));
}

TEST(LineMerger, DropsPendingErrorOfRank) {
  LineMerger merger(3);
  merger.feed(1, "a warning\nespalier: rank 0 has left\nthe job\n", kStart);
  merger.feed(2, "espalier: rank 0 has left\n", kStart);
  merger.drop_error(1);
  EXPECT_THAT(merger.take(kStart, true), ElementsAre("[rank 1] a warning\n", "[rank 2] espalier: rank 0 has left\n"));
}

TEST(LineMerger, RemovesRankPrefixFromLogLine) {
  LineMerger merger(2);
  merger.feed(1, "12:34:56.789 warn  [rank 1] slow\n[rank 0] said it\n", kStart);
  EXPECT_THAT(merger.take(kStart, true),
              ElementsAre("[rank 1] 12:34:56.789 warn  slow\n", "[rank 1] [rank 0] said it\n"));
}

TEST(LineMerger, FormatsRankRanges) {
  EXPECT_EQ(format_ranks({3}), "rank 3");
  EXPECT_EQ(format_ranks({0, 1, 2, 5, 7, 8}), "ranks 0-2,5,7-8");
}

}  // namespace
}  // namespace esp::launch
