#include "esp/dash/trace.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp::dash {
namespace {

using nlohmann::json;

json span(int rank, const std::string& name, double at, double length, const char* category = "compute", int row = 0) {
  return {{"ph", "X"},  {"name", name},    {"cat", category}, {"pid", rank},
          {"tid", row}, {"ts", 1000 + at}, {"dur", length}};
}

std::string trace_of(const std::vector<json>& events) {
  json all = {{"displayTimeUnit", "ms"}, {"otherData", {{"dropped_spans", 3}}}, {"traceEvents", events}};
  return all.dump();
}

TEST(Trace, FlattensNestedSpans) {
  const Trace trace = parse_trace(trace_of(
      {span(0, "forward", 0, 100), span(0, "all_reduce", 20, 30, "communication"), span(0, "backward", 150, 50)}));
  ASSERT_EQ(trace.ranks.size(), 1u);
  const auto& segments = trace.ranks[0].lines[0].segments;
  ASSERT_EQ(segments.size(), 4u);
  EXPECT_EQ(segments[0].end_us, 20);
  EXPECT_EQ(segments[1].kind, SpanKind::communication);
  EXPECT_EQ(segments[2].begin_us, 50);
  EXPECT_EQ(segments[2].kind, SpanKind::forward);
  EXPECT_EQ(segments[3].kind, SpanKind::backward);
  EXPECT_EQ(trace.length_us, 200);
  EXPECT_EQ(trace.dropped, 3u);
  const json window = json::parse(window_json(trace, 0, 100, 1000));
  EXPECT_EQ(window["ranks"][0]["times"], json({70, 0, 0, 0, 30, 0, 0, 0}));
}

// Two stages, one micro-batch: each stage computes during half of the window, so idle time equals busy time.
TEST(Trace, MeasuresBubbleOfStep) {
  std::vector<json> events;
  for (const double at : {0.0, 100.0}) {
    events.push_back(span(0, "F0", at, 10));
    events.push_back(span(1, "F0", at + 10, 10));
    events.push_back(span(1, "B0", at + 20, 20));
    events.push_back(span(0, "B0", at + 40, 10));
    events.push_back(span(0, "W0", at + 50, 10));
    for (const int rank : {0, 1}) events.push_back(span(rank, "optimizer", at + 60, 5));
  }
  // Forward and backward inside an evaluation do not belong to a step.
  events.push_back(span(0, "evaluate", 70, 20));
  events.push_back(span(0, "F0", 72, 10));
  events.push_back(span(1, "wait", 0, 10, "communication"));
  const Trace trace = parse_trace(trace_of(events));
  ASSERT_EQ(trace.steps.size(), 2u);
  EXPECT_EQ(trace.steps[1].begin_us, 100);
  EXPECT_EQ(trace.steps[1].end_us, 160);
  EXPECT_EQ(trace.steps[0].busy_us, 60);
  EXPECT_DOUBLE_EQ(trace.steps[0].bubble(2), 1.0);
  EXPECT_EQ(trace.ranks[0].lines[0].segments[2].kind, SpanKind::weights);
  EXPECT_EQ(trace.ranks[1].lines[0].segments[0].kind, SpanKind::waiting);
}

// If a trace begins within a step, the first event of this step is its update.
TEST(Trace, IgnoresStepThatBeganBeforeTrace) {
  const Trace trace = parse_trace(trace_of({span(0, "optimizer", 0, 5), span(0, "F0", 10, 10), span(0, "B0", 20, 10),
                                            span(0, "optimizer", 30, 5), span(0, "F0", 40, 10)}));
  ASSERT_EQ(trace.steps.size(), 1u);
  EXPECT_EQ(trace.steps[0].begin_us, 10);
  EXPECT_EQ(trace.steps[0].end_us, 30);
  EXPECT_TRUE(parse_trace(trace_of({span(0, "optimizer", 0, 5)})).steps.empty());
}

TEST(Trace, LimitsNumberOfSegmentsInWindow) {
  std::vector<json> events;
  for (int i = 0; i < 8000; ++i) events.push_back(span(0, i % 2 ? "forward" : "backward", i * 10, 6));
  events.push_back(span(0, "optimizer", 120000, 40000));
  const Trace trace = parse_trace(trace_of(events));
  const json whole = json::parse(window_json(trace, -1e300, 1e300, 400));
  const auto& flat = whole["ranks"][0]["lines"][0]["segments"];
  EXPECT_LT(flat.size(), 5u * 900);
  EXPECT_GT(flat.size(), 5u * 100);
  double spans = 0;
  for (size_t i = 4; i < flat.size(); i += 5) spans += flat[i].get<double>();
  EXPECT_EQ(spans, 8001);  // no span is lost; many are merged
  const json near = json::parse(window_json(trace, 1000, 1100, 400));
  EXPECT_EQ(near["ranks"][0]["lines"][0]["segments"].size() / 5, 11u);
}

TEST(Trace, AcceptsHugeTimes) {
  const Trace trace = parse_trace(trace_of({span(0, "F0", 0, 1e21), span(0, "B0", 3e21, 1e21)}));
  const json window = json::parse(window_json(trace, -1e300, 1e300, 60));
  const json& segments = window.at("ranks").at(0).at("lines").at(0).at("segments");
  ASSERT_EQ(segments.size(), 10u);  // a segment has five numbers, so there are two segments
  EXPECT_EQ(segments[5], 3e21);
}

TEST(Trace, ReportsDamagedTrace) {
  for (const char* bad : {"", "[]", "{}", "{\"traceEvents\":[", "{\"traceEvents\":[{}]", "{\"traceEvents\":3"})
    EXPECT_THROW(parse_trace(bad), IoError) << bad;
  const Trace odd = parse_trace(
      R"({"traceEvents":[{"ph":"X"},{"ph":"X","pid":-1,"ts":1,"dur":1},{"ph":"X","pid":0,"ts":1,"dur":-1},7,"x"]})");
  EXPECT_TRUE(odd.ranks.empty());
  EXPECT_TRUE(json::parse(window_json(odd, 0, 1, 10))["ranks"].empty());
}

TEST(Trace, MergesRanksOfSeveralFiles) {
  const std::string first = trace_of({span(0, "forward", 0, 10), span(0, "optimizer", 10, 5)});
  const std::string second = trace_of({span(1, "forward", 5, 10), span(1, "optimizer", 15, 5)});
  const std::string_view both[] = {first, second};
  const Trace trace = parse_traces(both);
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.ranks[1].lines[0].segments[0].begin_us, 5);
  EXPECT_EQ(trace.length_us, 20);
  EXPECT_EQ(trace.dropped, 6u);
  const std::string_view broken[] = {first, std::string_view(second).substr(0, 30)};
  EXPECT_THROW(parse_traces(broken), IoError);
}

// The text has places inside names and arguments where an event seems to begin. A split there is detected, and the text
// is parsed in one piece.
TEST(Trace, ParsingInPartsEqualsParsingWholeFile) {
  for (const char* trap : {"plain", "a},{\"b", "nested"}) {
    std::vector<json> events;
    for (int i = 0; i < 60; ++i) {
      events.push_back(span(i / 20, trap + std::to_string(i % 7), i * 10, 8));
      events.push_back(span(i / 20, "all_reduce", i * 10 + 2, 3, "communication", 1));
      if (std::string_view(trap) == "nested") events.back()["args"] = {{"of", {{{"a", 1}}, {{"ph", "X"}, {"pid", 9}}}}};
    }
    events.push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", 2}, {"tid", 0}, {"args", {{"name", "compute"}}}});
    const std::string text = trace_of(events);
    const std::string whole = window_json(parse_trace(text, 1), -1e300, 1e300, 500);
    for (size_t parts = 2; parts < 40; ++parts)
      ASSERT_EQ(window_json(parse_trace(text, parts), -1e300, 1e300, 500), whole) << trap << ", " << parts;
    for (size_t end = text.size() - 1; end > text.size() - 60; --end)
      ASSERT_THROW(parse_trace(std::string_view(text).substr(0, end), 5), IoError);
  }
}

}  // namespace
}  // namespace esp::dash
