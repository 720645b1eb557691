// The validator detects every single fault injected into a correct schedule and reports its location.
#include "esp/comm/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/comm/algo/table.h"

namespace esp::comm {
namespace {

using testing::HasSubstr;

CollectiveSpec spec_of(Op op, int size, size_t count) {
  CollectiveSpec spec;
  spec.op = op;
  spec.size = size;
  spec.count = count;
  return spec;
}

bool is_message(const Action& action) {
  return action.peer >= 0;
}

// Puts a fault into action i; returns false if this kind of fault does not apply to the action.
using Mutation = bool (*)(std::vector<Action>& actions, size_t i, const CollectiveSpec& spec);
const std::pair<const char*, Mutation> kMutations[] = {
    {"left out",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       actions.erase(actions.begin() + static_cast<ptrdiff_t>(i));
       return true;
     }},
    {"doubled",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (!is_message(actions[i])) return false;  // repeating a copy is not a fault
       actions.insert(actions.begin() + static_cast<ptrdiff_t>(i), Action(actions[i]));
       return true;
     }},
    {"with another peer",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec& spec) {
       if (!is_message(actions[i])) return false;
       actions[i].peer = (actions[i].peer + 1) % spec.size;
       return true;
     }},
    {"with the region moved by one element",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (actions[i].region.count == 0) return false;
       actions[i].region.offset += 1;
       return true;
     }},
    {"with the region one element shorter",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (actions[i].region.count == 0) return false;
       actions[i].region.count -= 1;
       return true;
     }},
    {"in the next round",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (!is_message(actions[i])) return false;
       actions[i].round += 1;
       return true;
     }},
    {"with receive and receive_reduce swapped",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       ActionType& type = actions[i].type;
       if (type != ActionType::receive && type != ActionType::receive_reduce) return false;
       if (actions[i].region.count == 0) return false;
       type = type == ActionType::receive ? ActionType::receive_reduce : ActionType::receive;
       return true;
     }},
    {"with one source repeated",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (actions[i].type != ActionType::reduce) return false;
       actions[i].sources.push_back(actions[i].sources[0]);
       return true;
     }},
};

TEST(Validate, DetectsEveryInjectedFault) {
  int tried = 0;
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op == Op::all_to_all_v) continue;
    for (int size : {2, 4, 5}) {
      CollectiveSpec spec = spec_of(row.op, size, row.op == Op::barrier ? 0 : static_cast<size_t>(size) * 6);
      spec.segments = 2;
      if (row.applies && !row.applies(spec).empty()) continue;
      auto specs = specs_for_all_ranks(spec);
      const auto schedules = build_all(row, specs);
      for (size_t r = 0; r < schedules.size(); ++r)
        for (size_t i = 0; i < schedules[r].actions.size(); ++i)
          for (const auto& [name, mutate] : kMutations) {
            auto broken = schedules;
            if (!mutate(broken[r].actions, i, spec)) continue;
            ++tried;
            EXPECT_NE(find_fault(specs, broken), "") << name_of(row.op) << " " << row.name << " size " << size
                                                     << " rank " << r << " action " << i << " " << name;
          }
    }
  }
  EXPECT_GT(tried, 5000);
}

// A ring of three ranks into which one fault is injected.
struct Ring {
  std::vector<CollectiveSpec> specs = specs_for_all_ranks(spec_of(Op::all_reduce, 3, 9));
  std::vector<Schedule> schedules = build_all(find_algorithm(Op::all_reduce, "ring"), specs);
  std::string fault() const { return find_fault(specs, schedules); }
  Action& first(int rank, ActionType type) {
    for (Action& action : schedules[static_cast<size_t>(rank)].actions)
      if (action.type == type) return action;
    throw std::logic_error("action not found");
  }
};

TEST(Validate, FaultNamesRankActionAndElements) {
  Ring good;
  EXPECT_EQ(good.fault(), "");
  EXPECT_NO_THROW(validate(good.specs, good.schedules));

  Ring outside;
  outside.first(1, ActionType::send).region.offset = 8;
  EXPECT_THAT(outside.fault(), HasSubstr("rank 1, action 1 (round 0, send output[8, 11) to 2)"));
  EXPECT_THAT(outside.fault(), HasSubstr("outside the buffer of 9 elements"));
  EXPECT_THROW(validate(outside.specs, outside.schedules), UsageError);

  Ring wrong_size;
  wrong_size.first(0, ActionType::send).region.count = 2;
  EXPECT_THAT(wrong_size.fault(), HasSubstr("rank 1"));
  EXPECT_THAT(wrong_size.fault(), HasSubstr("receives a message of 2 elements"));

  Ring overwrites_input;
  overwrites_input.first(2, ActionType::receive_reduce).region.buffer = Buffer::input;
  EXPECT_THAT(overwrites_input.fault(), HasSubstr("writes to the input buffer"));

  Ring unwritten;
  unwritten.schedules[0].actions.erase(unwritten.schedules[0].actions.begin());
  EXPECT_THAT(unwritten.fault(), HasSubstr("which was never written"));

  Ring twice;  // the all-gather adds instead of overwriting
  twice.first(0, ActionType::receive).type = ActionType::receive_reduce;
  EXPECT_THAT(twice.fault(), testing::ContainsRegex("adds the input of rank [0-9] twice in elements [0-9]+ to [0-9]+"));

  Ring collides;
  collides.first(0, ActionType::receive_reduce).region = collides.first(0, ActionType::send).region;
  EXPECT_THAT(collides.fault(), HasSubstr("overwrites data that is sent in the same round"));
}

TEST(Validate, DetectsDeadlockAndMissingTerms) {
  auto specs = specs_for_all_ranks(spec_of(Op::all_reduce, 2, 4));
  BufferRegion all{Buffer::output, 0, 4}, in{Buffer::input, 0, 4}, other{Buffer::scratch, 0, 4};
  // Each rank waits for the other before it sends.
  Schedule waits;
  waits.num_rounds = 2;
  waits.scratch_count = 4;
  waits.actions = {{ActionType::receive, 0, 1, other, {}},
                   {ActionType::send, 1, 1, in, {}},
                   {ActionType::reduce, 1, -1, all, {in, other}}};
  Schedule mirrored = waits;
  for (Action& action : mirrored.actions)
    if (action.peer >= 0) action.peer = 0;
  EXPECT_THAT(find_fault(specs, std::vector{waits, mirrored}), HasSubstr("waits forever"));

  Schedule alone;
  alone.actions = {{ActionType::copy, 0, -1, all, {in}}};
  EXPECT_THAT(find_fault(specs, std::vector{alone, alone}),
              HasSubstr("rank 0, output elements 0 to 3: got the sum over ranks 0; expected the sum over ranks 0,1"));
}

TEST(Validate, RejectsRoundsThatNeedBufferedSends) {
  // This schedule finishes if sends are buffered; it deadlocks if each send waits for its receiver.
  auto specs = specs_for_all_ranks(spec_of(Op::all_to_all, 2, 2));
  auto make = [](int rank) {
    size_t own = static_cast<size_t>(rank), peer = 1 - own;
    BufferRegion slot{Buffer::scratch, 0, 1};
    Schedule schedule;
    schedule.num_rounds = 1;
    schedule.scratch_count = 1;
    schedule.actions = {{ActionType::copy, 0, -1, {Buffer::output, own, 1}, {{Buffer::input, own, 1}}},
                        {ActionType::copy, 0, -1, slot, {{Buffer::input, peer, 1}}},
                        {ActionType::send, 0, 1 - rank, slot, {}},
                        {ActionType::receive, 0, 1 - rank, slot, {}},
                        {ActionType::copy, 0, -1, {Buffer::output, peer, 1}, {slot}}};
    return schedule;
  };
  EXPECT_THAT(find_fault(specs, std::vector{make(0), make(1)}), HasSubstr("sent in the same round"));
}

TEST(Validate, RejectsBarrierThatReleasesRankTooEarly) {
  auto specs = specs_for_all_ranks(spec_of(Op::barrier, 5, 0));
  auto schedules = build_all(find_algorithm(Op::barrier, "dissemination"), specs);
  for (Schedule& schedule : schedules) {  // removes the last round
    schedule.num_rounds = 2;
    std::erase_if(schedule.actions, [](const Action& action) { return action.round == 2; });
  }
  EXPECT_THAT(find_fault(specs, schedules), HasSubstr("may leave the barrier before rank"));
}

}  // namespace
}  // namespace esp::comm
