#include "esp/obs/spans.h"

#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::obs {
namespace {

std::vector<Json> events_of(const Json& trace, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : trace["traceEvents"])
    if (event["ph"] == phase) found.push_back(event);
  return found;
}

TEST(Spans, NestWithinOneRowAndKeepNamesAndArguments) {
  Tracer tracer(3);
  TraceRow* row = tracer.add_row("communication");
  const int64_t before = now_ns();
  {
    Span outer(row, "all_reduce", "comm");
    outer.arg("bytes", 4096);
    Span inner(row, "send", "net");
  }
  const int64_t after = now_ns();
  auto spans = events_of(tracer.trace(), "X");
  ASSERT_EQ(spans.size(), 2u);  // spans are stored in the order in which they ended
  EXPECT_EQ(spans[0]["name"], "send");
  EXPECT_EQ(spans[1]["name"], "all_reduce");
  EXPECT_EQ(spans[1]["pid"], 3);
  EXPECT_EQ(spans[1]["args"]["bytes"], 4096);
  double begin = spans[1]["ts"], end = begin + spans[1]["dur"].get<double>();
  EXPECT_LE(begin, spans[0]["ts"].get<double>());
  EXPECT_GE(begin * 1000 + 1, static_cast<double>(before));
  EXPECT_LE(end * 1000 - 1, static_cast<double>(after));
}

TEST(Spans, CountsDroppedSpansOfAFullRow) {
  Tracer tracer(0, 4);
  TraceRow* row = tracer.add_row("host");
  for (int i = 0; i < 10; ++i) Span span(row, "step", "train");
  Json trace = tracer.trace();
  EXPECT_EQ(events_of(trace, "X").size(), 4u);
  EXPECT_EQ(trace["otherData"]["dropped_spans"], 6);
}

TEST(Spans, IgnoreCallsOnNullRow) {
  Span span(nullptr, "nowhere", "none");
  span.arg("x", 1);
  span.end();
}

TEST(Spans, TruncateLongNamesAndArguments) {
  Tracer tracer(0);
  TraceRow* row = tracer.add_row("host");
  {
    Span span(row, std::string(100, 'n'), "c");
    for (const char* key : {"a", "b", "c", "d"}) span.arg(key, 1);
  }
  Json span = events_of(tracer.trace(), "X").at(0);
  EXPECT_EQ(span["name"], std::string(39, 'n'));
  EXPECT_EQ(span["args"].size(), 3u);
}

TEST(Spans, MergedRanksShareOneClockAndKeepTheirNames) {
  Tracer zero(0), one(1);
  SpanRecord record{.name = "work", .category = "c", .begin_ns = 5'000, .end_ns = 7'000};
  record.flow_out = 9;
  zero.add_row("compute")->add(record);
  record.flow_out = 0, record.flow_in = 9;
  one.add_row("compute")->add(record);
  Json traces[] = {zero.trace(), one.trace()};
  const int64_t offsets[] = {0, 1'000'000};
  Json merged = merge_traces(traces, offsets);
  auto spans = events_of(merged, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0]["ts"], 5.0);
  EXPECT_EQ(spans[1]["ts"], 1005.0);
  EXPECT_EQ(spans[1]["pid"], 1);
  EXPECT_EQ(events_of(merged, "s").at(0)["id"], 9);
  EXPECT_EQ(events_of(merged, "f").at(0)["ts"], 1007.0);
  EXPECT_EQ(events_of(merged, "M").at(0)["args"]["name"], "rank 0");
}

TEST(Spans, ReaderSeesWholeSpansDuringWrites) {
  Tracer tracer(0, 20000);
  TraceRow* row = tracer.add_row("compute");
  std::thread writer([row] {
    for (int i = 0; i < 20000; ++i) Span span(row, "work", "c");
  });
  for (int i = 0; i < 20; ++i)
    for (const SpanRecord& record : row->records()) ASSERT_LE(record.begin_ns, record.end_ns);
  writer.join();
  EXPECT_EQ(row->records().size(), 20000u);
}

TEST(Spans, WriteTheTraceAndReportAnInvalidPath) {
  TemporaryFolder folder;
  Tracer tracer(0);
  { Span span(tracer.add_row("host"), "save", "ckpt"); }
  write_trace(folder / "trace.json", tracer.trace());
  EXPECT_EQ(parse_json(read_whole_file(folder / "trace.json", 1 << 20), "trace"), tracer.trace());
  try {
    write_trace(folder / "missing/trace.json", tracer.trace());
    FAIL() << "wrote into a folder that does not exist";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("missing/trace.json"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace esp::obs
