// Overlap of communication and computation: which collectives start during backward, and which must not run during the
// optimizer step. One thread records all events, so their order does not depend on timing.
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

std::vector<obs::SpanRecord> spans_named(const RankResult& rank, std::string_view name) {
  std::vector<obs::SpanRecord> found;
  for (const obs::SpanRecord& span : rank.spans)
    if (name == span.name) found.push_back(span);
  return found;
}

int num_calls_during(const RankResult& rank, const obs::SpanRecord& span, auto&& selects) {
  int count = 0;
  for (const CallRecord& call : rank.calls.records)
    if (selects(call) && call.at_ns >= span.begin_ns && call.at_ns <= span.end_ns) ++count;
  return count;
}

// Before each bucket is launched, waits until the earlier buckets have completed. This is possible only if they
// complete while backward runs.
RunResult run_with_sequential_buckets(const char* method) {
  RunSpec spec;
  spec.ranks = 3;
  spec.steps = 2;
  spec.overrides = tiny_model({fmt::format("sync.method={}", method)});
  spec.prepare_log = [](int, CallLog& log) {
    log.on_start = [](const CallRecord& call, const std::vector<Work>& earlier) {
      if (!carries_gradients(call)) return;
      for (const Work& work : earlier) work.wait(Deadline::after(60s));
    };
  };
  return train_ranks(spec);
}

TEST(Overlap, BucketsCompleteWhileBackwardRuns) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const RunResult seen = run_with_sequential_buckets(method);
    for (const RankResult& rank : seen.ranks) {
      const auto backward = spans_named(rank, "backward");
      ASSERT_EQ(backward.size(), 2u) << method;
      // There are at least two launches, and the second waits for the first bucket. So the first bucket completed
      // during backward.
      for (const obs::SpanRecord& span : backward)
        EXPECT_GE(num_calls_during(rank, span, carries_gradients), 2) << method;
    }
  }
}

// In the trace, the first gradient collective must begin before backward ends. The second launch waits for the first
// collective, so the result does not depend on timing.
TEST(Overlap, TraceShowsCollectiveDuringBackward) {
  for (const char* method : {"allreduce", "zero1", "zero2", "zero3"}) {
    const RunResult seen = run_with_sequential_buckets(method);
    for (const RankResult& rank : seen.ranks) {
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

// With local accumulation, gradients must be sent only in the last micro-batch.
TEST(Overlap, SendsGradientsInTheLastMicroBatchOnly) {
  RunSpec spec;
  spec.ranks = 2;
  spec.steps = 1;
  spec.overrides = tiny_model({"sync.method=allreduce", "train.micro_batch=4"});
  const RunResult seen = train_ranks(spec);
  for (const RankResult& rank : seen.ranks) {
    const auto backward = spans_named(rank, "backward");
    ASSERT_EQ(backward.size(), 3u);
    EXPECT_EQ(num_calls_during(rank, backward[0], carries_gradients), 0);
    EXPECT_EQ(num_calls_during(rank, backward[1], carries_gradients), 0);
    EXPECT_GT(num_calls_during(rank, backward[2], carries_gradients), 0);
  }
}

TEST(Overlap, Zero3GathersNothingDuringTheOptimizerStep) {
  for (const char* method : {"zero2", "zero3"}) {
    RunSpec spec;
    spec.ranks = 2;
    spec.steps = 3;
    spec.overrides = tiny_model({fmt::format("sync.method={}", method)});
    const RunResult seen = train_ranks(spec);
    for (const RankResult& rank : seen.ranks) {
      int gathers = 0;
      for (const obs::SpanRecord& span : spans_named(rank, "optimizer"))
        gathers += num_calls_during(
            rank, span, [](const CallRecord& call) { return call.op == Op::all_gather && call.count > kScalars; });
      EXPECT_EQ(gathers > 0, std::string(method) == "zero2") << method;
    }
  }
}

}  // namespace
}  // namespace esp::parity
