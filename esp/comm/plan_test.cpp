// Plans must give the same results as schedules that run strictly in order: dependencies, aliasing, removed copies.
#include "esp/comm/plan.h"

#include <gtest/gtest.h>

#include "esp/comm/algo/table.h"
#include "esp/comm/plan_cache.h"

namespace esp::comm {
namespace {

BufferRegion in(size_t offset, size_t count) {
  return {Buffer::input, offset, count};
}
BufferRegion out(size_t offset, size_t count) {
  return {Buffer::output, offset, count};
}
BufferRegion tmp(size_t offset, size_t count) {
  return {Buffer::scratch, offset, count};
}

std::vector<uint32_t> before(const Plan& plan, uint32_t step) {
  return {plan.before.begin() + plan.first_before[step], plan.before.begin() + plan.first_before[step + 1]};
}

TEST(Plan, StepsDependOnEarlierAccessesToSameMemory) {
  Schedule schedule;
  schedule.scratch_count = 10;
  schedule.actions = {
      {ActionType::receive, 0, 1, tmp(0, 10), {}},                    // step 0
      {ActionType::send, 0, 2, tmp(0, 4), {}},                        // step 1 reads what step 0 wrote
      {ActionType::send, 0, 2, tmp(4, 6), {}},                        // step 2
      {ActionType::receive, 1, 1, tmp(3, 2), {}},                     // step 3 overwrites what steps 1 and 2 read
      {ActionType::reduce, 1, -1, out(0, 1), {tmp(9, 1), in(0, 1)}},  // step 4 reads what step 0 wrote
  };
  auto plan = make_plan(schedule, 4, std::nullopt, 10);
  EXPECT_EQ(before(*plan, 0), (std::vector<uint32_t>{}));
  EXPECT_EQ(before(*plan, 1), (std::vector<uint32_t>{0}));
  EXPECT_EQ(before(*plan, 3), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(before(*plan, 4), (std::vector<uint32_t>{0}));
  ASSERT_EQ(plan->lanes.size(), 2u);
}

TEST(Plan, SignalWaitsForEarlierSignals) {
  Schedule schedule;
  schedule.actions = {{ActionType::send, 0, 1, tmp(0, 0), {}},
                      {ActionType::receive, 0, 1, tmp(0, 0), {}},
                      {ActionType::send, 1, 2, tmp(0, 0), {}},
                      {ActionType::receive, 1, 2, tmp(0, 0), {}}};
  auto plan = make_plan(schedule, 1, std::nullopt, 0);
  EXPECT_EQ(before(*plan, 2), (std::vector<uint32_t>{1}));
  EXPECT_EQ(before(*plan, 3), (std::vector<uint32_t>{}));
}

TEST(Plan, StashesInputThatIsOverwrittenTooEarly) {
  Schedule schedule;
  schedule.actions = {{ActionType::receive, 0, 1, out(0, 8), {}}, {ActionType::send, 1, 1, in(0, 8), {}}};
  EXPECT_FALSE(make_plan(schedule, 4, std::nullopt, 8)->stash);
  EXPECT_TRUE(make_plan(schedule, 4, 0, 8)->stash);
  // If a rank sends and receives disjoint parts of the buffer, no stash is needed.
  EXPECT_FALSE(make_plan(schedule, 4, 8, 8)->stash);
}

TEST(Plan, StashesInputThatIsSwappedWithPeer) {
  Schedule schedule;
  schedule.actions = {{ActionType::send, 0, 1, in(0, 8), {}}, {ActionType::receive, 0, 1, out(0, 8), {}}};
  EXPECT_TRUE(make_plan(schedule, 4, 0, 8)->stash);
  EXPECT_FALSE(make_plan(schedule, 4, std::nullopt, 8)->stash);
}

TEST(Plan, InPlaceWritesWaitForReadsOfInput) {
  Schedule schedule;
  schedule.actions = {{ActionType::send, 0, 1, in(0, 8), {}}, {ActionType::receive, 1, 1, out(0, 8), {}}};
  EXPECT_EQ(before(*make_plan(schedule, 4, 0, 8), 1), (std::vector<uint32_t>{0}));
  EXPECT_EQ(before(*make_plan(schedule, 4, std::nullopt, 8), 1), (std::vector<uint32_t>{}));
}

TEST(PlanCache, EvictsLeastRecentlyUsedPlan) {
  PlanCache cache;
  auto key = [](size_t count) { return PlanKey{Op::all_reduce, 0, 0, 4, count, 0, false}; };
  for (size_t i = 0; i < PlanCache::kMaxPlans; ++i) cache.insert(key(i), 0, std::make_unique<Plan>());
  EXPECT_NE(cache.find(key(0)), nullptr);
  cache.insert(key(1000), 0, std::make_unique<Plan>());
  EXPECT_EQ(cache.size(), PlanCache::kMaxPlans);
  EXPECT_NE(cache.find(key(0)), nullptr);
  EXPECT_EQ(cache.find(key(1)), nullptr);
  auto large = std::make_unique<Plan>();
  large->scratch_bytes = 2 * PlanCache::kMaxBytes;
  cache.insert(key(2000), 0, std::move(large));
  EXPECT_EQ(cache.size(), 1u);
  EXPECT_NE(cache.find(key(2000)), nullptr);
}

TEST(ForwardCopies, RemovesInputCopyOfRingAllReduce) {
  CollectiveSpec spec;
  spec.op = Op::all_reduce;
  spec.rank = 1;
  spec.size = 4;
  spec.count = 100;
  Schedule ring = find_algorithm(Op::all_reduce, "ring").build(spec);
  Schedule forwarded = forward_copies(slice(ring, 10));
  int operands = 0;
  for (const Action& action : forwarded.actions) {
    EXPECT_NE(action.type, ActionType::copy);
    operands += action.type == ActionType::receive_reduce && action.sources.size() == 1;
  }
  EXPECT_EQ(operands, 9);  // three chunks of 25 elements, in slices of 10
}

TEST(ForwardCopies, CopiesIntervalsThatAreNotOverwritten) {
  Schedule schedule;
  schedule.actions = {{ActionType::copy, 0, -1, out(0, 10), {in(0, 10)}}, {ActionType::receive, 0, 1, out(3, 4), {}}};
  Schedule forwarded = forward_copies(schedule);
  ASSERT_EQ(forwarded.actions.size(), 3u);
  EXPECT_EQ(forwarded.actions[1].region.offset, 0u);
  EXPECT_EQ(forwarded.actions[1].region.count, 3u);
  EXPECT_EQ(forwarded.actions[2].region.offset, 7u);
  EXPECT_EQ(forwarded.actions[2].sources[0].offset, 7u);
}

}  // namespace
}  // namespace esp::comm
