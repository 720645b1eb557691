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

// Each breaks the action of one rank; false when it does not apply.
using Mutation = bool (*)(std::vector<Action>& actions, size_t i, const CollectiveSpec& spec);
const std::pair<const char*, Mutation> kMutations[] = {
    {"left out",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       actions.erase(actions.begin() + static_cast<ptrdiff_t>(i));
       return true;
     }},
    {"doubled",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (!is_message(actions[i])) return false;  // a copy made twice is the same copy
       actions.insert(actions.begin() + static_cast<ptrdiff_t>(i), Action(actions[i]));
       return true;
     }},
    {"with another peer",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec& spec) {
       if (!is_message(actions[i])) return false;
       actions[i].peer = (actions[i].peer + 1) % spec.size;
       return true;
     }},
    {"one element along",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (actions[i].region.count == 0) return false;
       actions[i].region.offset += 1;
       return true;
     }},
    {"one element short",
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
    {"adding instead of copying or the reverse",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       Act& act = actions[i].act;
       if (act != Act::receive && act != Act::receive_reduce) return false;
       if (actions[i].region.count == 0) return false;
       act = act == Act::receive ? Act::receive_reduce : Act::receive;
       return true;
     }},
    {"with a term twice",
     [](std::vector<Action>& actions, size_t i, const CollectiveSpec&) {
       if (actions[i].act != Act::reduce) return false;
       actions[i].sources.push_back(actions[i].sources[0]);
       return true;
     }},
};

TEST(Validate, FindsEverySingleFault) {
  int tried = 0;
  for (const AlgorithmRow& row : algorithms()) {
    if (row.op == Op::all_to_all_v) continue;
    for (int size : {2, 4, 5}) {
      CollectiveSpec spec = spec_of(row.op, size, row.op == Op::barrier ? 0 : static_cast<size_t>(size) * 6);
      spec.segments = 2;
      if (row.applies && !row.applies(spec).empty()) continue;
      auto specs = for_every_rank(spec);
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

// A ring of three with one thing wrong.
struct Ring {
  std::vector<CollectiveSpec> specs = for_every_rank(spec_of(Op::all_reduce, 3, 9));
  std::vector<Schedule> schedules = build_all(find_algorithm(Op::all_reduce, "ring"), specs);
  std::string fault() const { return find_fault(specs, schedules); }
  Action& first(int rank, Act act) {
    for (Action& action : schedules[static_cast<size_t>(rank)].actions)
      if (action.act == act) return action;
    throw std::logic_error("no such action");
  }
};

TEST(Validate, SaysRankActionAndElements) {
  Ring good;
  EXPECT_EQ(good.fault(), "");
  EXPECT_NO_THROW(validate(good.specs, good.schedules));

  Ring outside;
  outside.first(1, Act::send).region.offset = 8;
  EXPECT_THAT(outside.fault(), HasSubstr("rank 1, action 1 (round 0, send output[8, 11) to 2)"));
  EXPECT_THAT(outside.fault(), HasSubstr("outside the buffer of 9 elements"));
  EXPECT_THROW(validate(outside.specs, outside.schedules), UsageError);

  Ring wrong_size;
  wrong_size.first(0, Act::send).region.count = 2;
  EXPECT_THAT(wrong_size.fault(), HasSubstr("rank 1"));
  EXPECT_THAT(wrong_size.fault(), HasSubstr("meets a message of 2 elements"));

  Ring overwrites_input;
  overwrites_input.first(2, Act::receive_reduce).region.buffer = Buffer::input;
  EXPECT_THAT(overwrites_input.fault(), HasSubstr("the input is read only"));

  Ring unwritten;
  unwritten.schedules[0].actions.erase(unwritten.schedules[0].actions.begin());
  EXPECT_THAT(unwritten.fault(), HasSubstr("which nothing has written"));

  Ring twice;  // the all-gather adds what is already there
  twice.first(0, Act::receive).act = Act::receive_reduce;
  EXPECT_THAT(twice.fault(), testing::ContainsRegex("counts rank [0-9] twice in elements [0-9]+ to [0-9]+"));

  Ring collides;
  collides.first(0, Act::receive_reduce).region = collides.first(0, Act::send).region;
  EXPECT_THAT(collides.fault(), HasSubstr("writes what is being sent in the same round"));
}

TEST(Validate, FindsDeadlockAndMissingTerms) {
  auto specs = for_every_rank(spec_of(Op::all_reduce, 2, 4));
  BufferRegion all{Buffer::output, 0, 4}, in{Buffer::input, 0, 4}, other{Buffer::scratch, 0, 4};
  // Each waits for the other before it sends.
  Schedule waits;
  waits.num_rounds = 2;
  waits.scratch_count = 4;
  waits.actions = {{Act::receive, 0, 1, other, {}}, {Act::send, 1, 1, in, {}}, {Act::reduce, 1, -1, all, {in, other}}};
  Schedule mirrored = waits;
  for (Action& action : mirrored.actions)
    if (action.peer >= 0) action.peer = 0;
  EXPECT_THAT(find_fault(specs, std::vector{waits, mirrored}), HasSubstr("waits forever"));

  Schedule alone;
  alone.actions = {{Act::copy, 0, -1, all, {in}}};
  EXPECT_THAT(find_fault(specs, std::vector{alone, alone}),
              HasSubstr("rank 0, output elements 0 to 3 end as the sum over ranks 0; it should be 0,1"));
}

TEST(Validate, RejectsRoundsThatNeedBufferedSends) {
  // Runs when sends are buffered, and never ends when a send waits for its receiver.
  auto specs = for_every_rank(spec_of(Op::all_to_all, 2, 2));
  auto make = [](int rank) {
    size_t own = static_cast<size_t>(rank), peer = 1 - own;
    BufferRegion slot{Buffer::scratch, 0, 1};
    Schedule schedule;
    schedule.num_rounds = 1;
    schedule.scratch_count = 1;
    schedule.actions = {{Act::copy, 0, -1, {Buffer::output, own, 1}, {{Buffer::input, own, 1}}},
                        {Act::copy, 0, -1, slot, {{Buffer::input, peer, 1}}},
                        {Act::send, 0, 1 - rank, slot, {}},
                        {Act::receive, 0, 1 - rank, slot, {}},
                        {Act::copy, 0, -1, {Buffer::output, peer, 1}, {slot}}};
    return schedule;
  };
  EXPECT_THAT(find_fault(specs, std::vector{make(0), make(1)}), HasSubstr("being sent in the same round"));
}

TEST(Validate, DetectsLeakyBarrier) {
  auto specs = for_every_rank(spec_of(Op::barrier, 5, 0));
  auto schedules = build_all(find_algorithm(Op::barrier, "dissemination"), specs);
  for (Schedule& schedule : schedules) {  // one round short
    schedule.num_rounds = 2;
    std::erase_if(schedule.actions, [](const Action& action) { return action.round == 2; });
  }
  EXPECT_THAT(find_fault(specs, schedules), HasSubstr("may leave before rank"));
}

}  // namespace
}  // namespace esp::comm
