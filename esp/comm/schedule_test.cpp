#include "esp/comm/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "esp/comm/algo/schedule_builder.h"
#include "esp/comm/algo/table.h"
#include "esp/comm/validate.h"

namespace esp::comm {
namespace {

std::vector<Schedule> ring(size_t count) {
  CollectiveSpec spec;
  spec.size = 3;
  spec.count = count;
  return build_all(find_algorithm(Op::all_reduce, "ring"), specs_for_all_ranks(spec));
}

TEST(Slice, SenderAndReceiverSplitMessagesEqually) {
  auto schedules = ring(33);  // 33 elements in three chunks of 11
  for (Schedule& schedule : schedules) {
    Schedule sliced = slice(schedule, 4);
    EXPECT_EQ(sliced.num_rounds, schedule.num_rounds);
    std::vector<size_t> sent, received;
    for (const Action& action : sliced.actions) {
      EXPECT_LE(action.region.count, 4u);
      if (action.type == ActionType::send) sent.push_back(action.region.count);
      if (action.type == ActionType::receive || action.type == ActionType::receive_reduce)
        received.push_back(action.region.count);
    }
    std::vector<size_t> want;
    for (int message = 0; message < 4; ++message) want.insert(want.end(), {4, 4, 3});
    EXPECT_EQ(sent, want);
    EXPECT_EQ(received, want);
  }
}

TEST(Slice, KeepsShortMessagesWhole) {
  Schedule schedule = ring(33)[0];
  Schedule same = slice(schedule, 33);
  ASSERT_EQ(same.actions.size(), schedule.actions.size());
  for (size_t i = 0; i < same.actions.size(); ++i) {
    EXPECT_EQ(same.actions[i].region.offset, schedule.actions[i].region.offset);
    EXPECT_EQ(same.actions[i].region.count, schedule.actions[i].region.count);
  }
}

TEST(Slice, KeepsZeroByteMessages) {
  CollectiveSpec spec;
  spec.op = Op::barrier;
  spec.size = 4;
  Schedule barrier = find_algorithm(Op::barrier, "dissemination").build(spec);
  EXPECT_EQ(slice(barrier, 1).actions.size(), barrier.actions.size());
}

TEST(Slice, AlternatesReceiveAndReductionSliceBySlice) {
  Schedule schedule;
  schedule.num_rounds = 1;
  schedule.scratch_count = 6;
  BufferRegion out{Buffer::output, 0, 6}, slot{Buffer::scratch, 0, 6};
  schedule.actions = {{ActionType::receive, 0, 1, slot, {}}, {ActionType::reduce, 0, -1, out, {out, slot}}};
  std::vector<ActionType> order;
  for (const Action& action : slice(schedule, 3).actions) order.push_back(action.type);
  EXPECT_EQ(order, (std::vector{ActionType::receive, ActionType::reduce, ActionType::receive, ActionType::reduce}));
}

TEST(RankGrid, SplitsSizeAsEvenlyAsDivisorsAllow) {
  auto shape = [](int size, int axes, std::vector<int> given = {}) {
    CollectiveSpec spec;
    spec.size = size;
    spec.shape.dims = std::move(given);
    return grid_for(spec, axes).dims;
  };
  using Dims = std::vector<int>;
  EXPECT_EQ(shape(12, 2), (Dims{4, 3}));
  EXPECT_EQ(shape(7, 2), (Dims{7, 1}));
  EXPECT_EQ(shape(27, 3), (Dims{3, 3, 3}));
  EXPECT_EQ(shape(16, 3), (Dims{4, 2, 2}));
  EXPECT_EQ(shape(1, 3), (Dims{1, 1, 1}));
  EXPECT_EQ(shape(24, 0), (Dims{3, 2, 2, 2}));
  EXPECT_EQ(shape(8, 3, {4, 2}), (Dims{2, 2, 2}));
  EXPECT_EQ(shape(8, 2, {2, 4}), (Dims{2, 4}));
  CollectiveSpec wrong;
  wrong.size = 8;
  wrong.shape.dims = {3, 2};
  EXPECT_NE(grid_problem(wrong, 2).find("needs a shape of 8 ranks; got 3x2 = 6 ranks"), std::string::npos);
  wrong.shape.dims = {2, 2, 2};
  EXPECT_NE(grid_problem(wrong, 2), "");
}

TEST(ScheduleBuilder, OrdersSendsBeforeReceivesInRound) {
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op == Op::all_to_all_v) continue;
    CollectiveSpec spec;
    spec.op = row.op;
    spec.size = 8;
    spec.count = row.op == Op::barrier ? 0 : 64;
    for (const Schedule& schedule : build_all(row, specs_for_all_ranks(spec))) {
      const auto& actions = schedule.actions;
      for (size_t i = 1; i < actions.size(); ++i) {
        EXPECT_LE(actions[i - 1].round, actions[i].round);
        bool late = actions[i].type == ActionType::send && actions[i - 1].round == actions[i].round &&
                    (actions[i - 1].type == ActionType::receive || actions[i - 1].type == ActionType::receive_reduce);
        EXPECT_FALSE(late) << name_of(row.op) << " " << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace esp::comm
