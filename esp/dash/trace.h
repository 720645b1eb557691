// trace.json as rows of segments, which the page can draw at any zoom. Each rank has one row for its main thread
// (forward, backward, weight gradients, update, exposed communication, waiting) and one for its communicators.
//
// Spans of the main thread are nested. They are flattened: at any time only the innermost span counts. So segments of a
// row never overlap, and their durations can be added. Time without a segment is idle. The text is parsed in one pass
// without building a tree: a trace of 64 ranks has millions of spans.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::dash {

// waiting: the rank waits for a message of another pipeline stage (the bubble). communication: the rank blocks on any
// other communication.
enum class SpanKind : uint8_t { forward, backward, weights, update, communication, waiting, evaluate, other };
inline constexpr size_t kNumSpanKinds = 8;
std::string_view name_of(SpanKind kind);

struct Segment {
  double begin_us = 0, end_us = 0;  // relative to the beginning of the trace
  SpanKind kind = SpanKind::other;
  uint32_t name = 0;  // index into Trace::names
};

struct TraceTrack {
  std::string name;  // name of the row: "compute", "communication"
  std::vector<Segment> segments;
};

struct TraceRank {
  int64_t rank = 0;
  std::string name;
  std::vector<TraceTrack> lines;
};

// One step of all ranks: from the first forward of any rank to the end of the last compute of any rank.
struct TraceStep {
  double begin_us = 0, end_us = 0;
  double busy_us = 0;                     // time in forward, backward and weight gradients, summed over ranks
  double bubble(size_t num_ranks) const;  // idle time / busy time
};

struct Trace {
  double length_us = 0;
  uint64_t num_spans = 0, dropped = 0;
  std::vector<std::string> names;
  std::vector<TraceRank> ranks;  // in the order of ranks
  std::vector<TraceStep> steps;
};

// Parses a trace. Invalid spans are skipped. IoError: the text is not a trace. A long text is parsed in `num_parts`
// parts, one thread each; 0 chooses by the length of the text and the number of cores.
Trace parse_trace(std::string_view text, size_t num_parts = 0);
// Parses several files, one per rank, as one trace.
Trace parse_traces(std::span<const std::string_view> texts, size_t num_parts = 0);

// JSON of the segments between two times, about `buckets` per row at most. Adjacent segments that are too narrow to see
// are merged, and named after the one that fills most of the time. Also has the time of each rank by kind of span.
std::string window_json(const Trace& trace, double from_us, double to_us, int buckets);

}  // namespace esp::dash
