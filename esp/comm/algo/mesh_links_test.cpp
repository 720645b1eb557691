// A mesh has no link from the last rank of a row to the first. The ring's message between them travels back along the
// row.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "esp/comm/algo/table.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

TEST(Mesh2d, UsesEachLinkAtMostOncePerDirectionAndRound) {
  for (const auto& [columns, rows] : {std::pair{4, 3}, {3, 4}, {5, 2}, {2, 2}, {6, 5}}) {
    CollectiveSpec spec;
    spec.op = Op::all_reduce;
    spec.size = columns * rows;
    spec.count = static_cast<size_t>(spec.size) * 10;
    spec.shape.dims = {columns, rows};
    const auto schedules = build_all(find_algorithm(Op::all_reduce, "mesh2d"), specs_for_all_ranks(spec));
    // number of messages by (round, sending neighbour, receiving neighbour)
    std::map<std::tuple<int, int, int>, int> flows;
    for (int rank = 0; rank < spec.size; ++rank)
      for (const Action& action : schedules[static_cast<size_t>(rank)].actions) {
        if (action.type != ActionType::send) continue;
        const bool along_row = action.peer / columns == rank / columns;
        ASSERT_TRUE(along_row || action.peer % columns == rank % columns) << "a message along a diagonal";
        const int stride = along_row ? 1 : columns, step = action.peer > rank ? stride : -stride;
        for (int at = rank; at != action.peer; at += step) ++flows[{action.round, at, at + step}];
      }
    EXPECT_GT(flows.size(), 0u);
    for (const auto& [link, count] : flows) EXPECT_EQ(count, 1) << columns << 'x' << rows;
  }
}

}  // namespace
}  // namespace esp::comm
