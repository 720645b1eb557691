// trace.json as rows of segments, ready to be looked at from any distance: per rank what its main thread did (forward,
// backward, weight gradients, update, communication that shows, waiting) and what its communicators did meanwhile.
//
// Spans of the main thread nest; they are flattened, the innermost counting, so that segments of a row never overlap
// and their sums are times. Idle is what no segment covers. Reading is one pass over the text, without a tree: a trace
// of 64 ranks has millions of spans.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace esp::dash {

// Waiting is for a message of another stage: a pipeline's bubble. Communication is what else a rank stands still for.
enum class SpanKind : uint8_t { forward, backward, weights, update, communication, waiting, evaluate, other };
inline constexpr size_t kNumSpanKinds = 8;
std::string_view name_of(SpanKind kind);

struct Segment {
  double begin_us = 0, end_us = 0;  // from the trace's beginning
  SpanKind kind = SpanKind::other;
  uint32_t name = 0;  // of Trace::names
};

struct TraceLine {
  std::string name;  // "compute", "communication"
  std::vector<Segment> segments;
};

struct TraceRank {
  int64_t rank = 0;
  std::string name;
  std::vector<TraceLine> lines;
};

// Of one step that every rank took part in: from the first forward of any to the last compute of any.
struct TraceStep {
  double begin_us = 0, end_us = 0;
  double busy_us = 0;                     // forward, backward and weight gradients of all ranks
  double bubble(size_t num_ranks) const;  // idle over busy
};

struct Trace {
  double length_us = 0;
  uint64_t num_spans = 0, dropped = 0;
  std::vector<std::string> names;
  std::vector<TraceRank> ranks;  // by rank
  std::vector<TraceStep> steps;
};

// IoError: not a trace. Spans that make no sense are left out. A long text is read in parts, by a thread each; 0: as
// its length and the processor's cores suggest.
Trace parse_trace(std::string_view text, size_t num_parts = 0);
// One of several files, as each rank has its own.
Trace parse_traces(std::span<const std::string_view> texts, size_t num_parts = 0);

// What lies between two times as JSON, at most about so many segments a row: neighbours too narrow to be seen apart are
// drawn as one, named by what fills most of it. Also per rank the time by kind in this window.
std::string window_of(const Trace& trace, double from_us, double to_us, int buckets);

}  // namespace esp::dash
