// Spans: named time intervals on rows, as a trace for Perfetto and chrome://tracing.
//
// A Tracer belongs to one rank and owns its rows (compute, communication, host, …). A row is a bounded buffer with one
// writing thread; its spans may nest. When a row is full, further spans are dropped and counted. Another thread may
// read a tracer while rows are written; it sees the spans that have ended. A Span on a null row costs one branch, so
// callers need not test whether tracing is on.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"
#include "esp/base/json.h"

namespace esp::obs {

struct SpanArg {
  const char* key = nullptr;  // a string literal
  int64_t value = 0;
};

struct SpanRecord {
  static constexpr int kMaxArgs = 3;
  char name[40] = {};              // longer names are truncated
  const char* category = nullptr;  // a string literal
  int64_t begin_ns = 0, end_ns = 0;
  SpanArg args[kMaxArgs];
  // Perfetto draws an arrow from the span with flow_out = x to the span with flow_in = x. 0: no arrow.
  uint64_t flow_out = 0, flow_in = 0;
};

class TraceRow {
 public:
  TraceRow(std::string_view name, size_t capacity) : name_(name), records_(capacity) {}
  void add(const SpanRecord& record);

  const std::string& name() const { return name_; }
  std::span<const SpanRecord> records() const { return {records_.data(), used_.load(std::memory_order_acquire)}; }
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  std::string name_;
  std::vector<SpanRecord> records_;
  std::atomic<size_t> used_{0};
  std::atomic<uint64_t> dropped_{0};
};

class Tracer {
 public:
  explicit Tracer(int rank, size_t spans_per_row = 16384) : rank_(rank), spans_per_row_(spans_per_row) {}
  // Creates a row; the trace shows rows in the order of these calls. The pointer stays valid for the tracer's lifetime.
  TraceRow* add_row(std::string_view name);
  // This rank's trace; its times are on its own clock.
  Json trace() const;

 private:
  int rank_;
  size_t spans_per_row_;
  mutable std::mutex mutex_;  // guards rows_, not the spans in the rows
  std::deque<TraceRow> rows_;
};

class Span {
 public:
  Span(TraceRow* row, std::string_view name, const char* category);
  ~Span() { end(); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  void arg(const char* key, int64_t value);  // adds an argument to the span; arguments after the third are ignored
  void flow_to(uint64_t id) { record_.flow_out = id; }
  void flow_from(uint64_t id) { record_.flow_in = id; }
  void end();

 private:
  TraceRow* row_;
  int num_args_ = 0;
  SpanRecord record_;
};

// Merges the traces of several ranks. clock_offsets_ns[k] is added to the times of traces[k]: it is the common clock
// minus that rank's clock. Ranks of one host share a clock, so their offset is 0.
Json merge_traces(std::span<const Json> traces, std::span<const int64_t> clock_offsets_ns);

// Writes the file completely or not at all. Throws IoError.
void write_trace(const std::string& path, const Json& trace);

}  // namespace esp::obs
