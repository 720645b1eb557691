#include "esp/comm/stall.h"

#include <gtest/gtest.h>

#include "esp/comm/call.h"
#include "esp/comm/stall_timeout.h"

namespace esp::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

net::Tag all_reduce_of(size_t count, uint64_t sequence) {
  Call call;
  call.op = Op::all_reduce;
  call.count = count;
  return tag_of(call, sequence, -1);
}

RankStatus waits(uint64_t sequence) {
  RankStatus at;
  at.answers = at.waiting = true;
  at.phase = Phase::step;
  at.call = all_reduce_of(1000, sequence);
  return at;
}

RankStatus busy(int64_t step) {
  RankStatus at;
  at.answers = true;
  at.phase = Phase::step;
  at.number = step;
  at.in_phase = milliseconds(2500);
  return at;
}

TEST(StallTimeout, EqualsFiveTimesP99AndAtLeastTwoSeconds) {
  StallTimeout timeout;
  EXPECT_EQ(timeout.timeout(Phase::step), StallTimeout::kAllowance);
  for (int i = 0; i < 128; ++i) timeout.record(Phase::step, milliseconds(10));
  EXPECT_EQ(timeout.timeout(Phase::step), StallTimeout::kFloor);
  timeout.record(Phase::step, seconds(9));  // a single outlier in 128 samples does not change the p99
  EXPECT_EQ(timeout.timeout(Phase::step), StallTimeout::kFloor);
  for (int i = 0; i < 128; ++i) timeout.record(Phase::step, milliseconds(600));
  EXPECT_EQ(timeout.timeout(Phase::step), seconds(3));
}

TEST(StallTimeout, PhasesAreIndependent) {
  StallTimeout timeout;
  for (int i = 0; i < 3; ++i) timeout.record(Phase::step, seconds(1));
  EXPECT_EQ(timeout.timeout(Phase::step), seconds(5));
  EXPECT_EQ(timeout.timeout(Phase::checkpoint), StallTimeout::kAllowance);
  // There are no evaluation samples yet, so the timeout is 20 (expected_steps) times the timeout of a step.
  EXPECT_EQ(timeout.timeout(Phase::evaluation, 20), seconds(100));
  timeout.record(Phase::evaluation, seconds(2));
  timeout.record(Phase::checkpoint, seconds(4));
  EXPECT_EQ(timeout.timeout(Phase::evaluation, 20), seconds(10));
  EXPECT_EQ(timeout.timeout(Phase::checkpoint), seconds(20));
  timeout.record(Phase::start, seconds(1));
  // The start phase occurs once per run, so its samples are not used and the allowance applies.
  EXPECT_EQ(timeout.timeout(Phase::start), StallTimeout::kAllowance);
}

TEST(Stall, NamesUnresponsiveRankInsteadOfBusyRank) {
  std::vector<RankStatus> all{waits(7), busy(3), RankStatus(), waits(7)};
  const auto stall = diagnose_stall(0, all);
  ASSERT_TRUE(stall);
  EXPECT_TRUE(stall->silent);
  EXPECT_EQ(stall->ranks, std::vector<int>{2});
  EXPECT_EQ(stall->waiting, (std::vector<int>{0, 3}));
}

TEST(Stall, NamesRankThatDoesNotWaitAndItsPhase) {
  std::vector<RankStatus> all{waits(7), waits(7), busy(3), waits(9)};
  auto stall = diagnose_stall(0, all);
  ASSERT_TRUE(stall);
  EXPECT_FALSE(stall->silent);
  EXPECT_EQ(stall->ranks, std::vector<int>{2});
  stall->call = all[0].call;
  stall->group = 0xab;
  stall->number = 3;
  stall->waited = milliseconds(2100);
  EXPECT_EQ(
      describe(*stall, all, "gradients of head"),
      "rank 2 has not entered the call: busy in step 3 for 2.5 s; ranks 0-1,3 wait in all_reduce of 1000 f32, "
      "sum, algorithm auto (call #7 of group ab: gradients of head) for 2.1 s, in step 3; of these, rank 3 waits in "
      "all_reduce of 1000 f32, sum, algorithm auto (call #9)");
}

TEST(Stall, ReportsNothingWhenAllOrNoneWait) {
  EXPECT_FALSE(diagnose_stall(0, std::vector<RankStatus>{waits(1), waits(1)}));
  EXPECT_FALSE(diagnose_stall(0, std::vector<RankStatus>{busy(1), busy(1)}));
  RankStatus left;
  left.exited = true;
  EXPECT_FALSE(diagnose_stall(0, std::vector<RankStatus>{waits(1), left}));
}

TEST(Stall, NamesHubWhenNoRankAnswers) {
  const auto stall = diagnose_stall(2, std::vector<RankStatus>{RankStatus(), RankStatus(), waits(4)});
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->ranks, std::vector<int>{0});
}

TEST(Stall, StatusRoundTripsThroughTag) {
  for (const RankStatus& at : {waits(12), busy(77)}) {
    net::CallPosition position;
    position.answered = true;
    position.inside = at.waiting;
    position.entered = encode_status(at);
    const RankStatus back = decode_status(position);
    EXPECT_TRUE(back.answers);
    EXPECT_EQ(back.waiting, at.waiting);
    EXPECT_EQ(back.phase, at.phase);
    EXPECT_EQ(back.number, at.number);
    EXPECT_EQ(back.call.sequence, at.call.sequence);
    EXPECT_EQ(back.in_phase, at.in_phase);
  }
}

}  // namespace
}  // namespace esp::comm
