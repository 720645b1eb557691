// The order of events in a step: what is launched while backward runs, and what is not done after the update. Events
// are of one thread, so their order does not depend on how fast anything is.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "tests/parity/sync_runs.h"

namespace esp::parity {
namespace {

using namespace std::chrono_literals;
using comm::Op;

bool carries_gradients(const CallRecord& call) {
  return call.count > kScalars && (call.op == Op::all_reduce || call.op == Op::reduce_scatter);
}

std::vector<obs::SpanRecord> named(const RankSeen& rank, std::string_view name) {
  std::vector<obs::SpanRecord> found;
  for (const obs::SpanRecord& span : rank.spans)
    if (name == span.name) found.push_back(span);
  return found;
}

int num_within(const RankSeen& rank, const obs::SpanRecord& span, auto&& wanted) {
  int count = 0;
  for (const CallRecord& call : rank.calls.records)
    if (wanted(call) && call.at_ns >= span.begin_ns && call.at_ns <= span.end_ns) ++count;
  return count;
}

// No bucket is launched before those ahead of it have arrived, which they can only do while backward runs.
Seen run_in_turn(const char* method) {
  Plan plan;
  plan.ranks = 3;
  plan.steps = 2;
  plan.overrides = tiny({fmt::format("sync.method={}", method)});
  plan.listen = [](int, CallLog& log) {
    log.on_start = [](const CallRecord& call, const std::vector<Work>& earlier) {
      if (!carries_gradients(call)) return;
      for (const Work& work : earlier) work.wait(Deadline::after(60s));
    };
  };
  return train_ranks(plan);
}

TEST(Overlap, BucketsArriveWhileBackwardRuns) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const Seen seen = run_in_turn(method);
    for (const RankSeen& rank : seen.ranks) {
      const auto backward = named(rank, "backward");
      ASSERT_EQ(backward.size(), 2u) << method;
      // At least two: the second found the first there.
      for (const obs::SpanRecord& span : backward) EXPECT_GE(num_within(rank, span, carries_gradients), 2) << method;
    }
  }
}

// As drawn: the first collective that carries gradients begins, on its own row, before backward ends. The second waits
// to be launched until it has ended, so that no clock decides.
TEST(Overlap, IsDrawnInTheTrace) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const Seen seen = run_in_turn(method);
    for (const RankSeen& rank : seen.ranks) {
      double backward_ends = 0, first_begins = 0;
      for (const Json& event : rank.trace.at("traceEvents")) {
        if (event.at("ph") != "X") continue;
        const std::string name = event.at("name");
        const double begins = event.at("ts");
        if (name == "backward" && backward_ends == 0) backward_ends = begins + event.at("dur").get<double>();
        const bool gradients = name == (std::string(method) == "allreduce" ? "all_reduce" : "reduce_scatter") &&
                               event.at("args").at("bytes") > kScalars * 8;
        if (gradients && (first_begins == 0 || begins < first_begins)) first_begins = begins;
      }
      EXPECT_GT(first_begins, 0) << method;
      EXPECT_LT(first_begins, backward_ends) << method;
    }
  }
}

// With micro-batches gradients wait for the last.
TEST(Overlap, NothingLeavesBeforeTheLastMicroBatch) {
  Plan plan;
  plan.ranks = 2;
  plan.steps = 1;
  plan.overrides = tiny({"sync.method=allreduce", "train.micro_batch=4"});
  const Seen seen = train_ranks(plan);
  for (const RankSeen& rank : seen.ranks) {
    const auto backward = named(rank, "backward");
    ASSERT_EQ(backward.size(), 3u);
    EXPECT_EQ(num_within(rank, backward[0], carries_gradients), 0);
    EXPECT_EQ(num_within(rank, backward[1], carries_gradients), 0);
    EXPECT_GT(num_within(rank, backward[2], carries_gradients), 0);
  }
}

TEST(Overlap, Stage3GathersNothingAfterTheStep) {
  for (const char* method : {"zero2", "zero3"}) {
    Plan plan;
    plan.ranks = 2;
    plan.steps = 3;
    plan.overrides = tiny({fmt::format("sync.method={}", method)});
    const Seen seen = train_ranks(plan);
    for (const RankSeen& rank : seen.ranks) {
      int gathers = 0;
      for (const obs::SpanRecord& span : named(rank, "optimizer"))
        gathers += num_within(
            rank, span, [](const CallRecord& call) { return call.op == Op::all_gather && call.count > kScalars; });
      EXPECT_EQ(gathers > 0, std::string(method) == "zero2") << method;
    }
  }
}

}  // namespace
}  // namespace esp::parity
