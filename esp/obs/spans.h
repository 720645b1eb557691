// Spans: what ran from when to when, on which row, as a trace that Perfetto and chrome://tracing open.
//
// A Tracer belongs to one rank and owns its rows (compute, communication, host, …). A row is a bounded buffer with one
// writing thread; its spans may nest. When a row is full further spans are counted, not kept. Reading a tracer while
// rows are written is safe and sees the spans that had ended. A Span on a null row costs one branch, so code need not
// ask whether tracing is on.
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
  const char* key = nullptr;  // a literal
  int64_t value = 0;
};

struct SpanRecord {
  static constexpr int kMaxArgs = 3;
  char name[40] = {};              // longer names are cut
  const char* category = nullptr;  // a literal
  int64_t begin_ns = 0, end_ns = 0;
  SpanArg args[kMaxArgs];
  uint64_t flow_out = 0, flow_in = 0;  // an arrow is drawn from flow_out of one span to the equal flow_in of another
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
  // A new row, in the order of calls. Valid as long as the tracer is.
  TraceRow* add_row(std::string_view name);
  // This rank's trace, on its own clock.
  Json trace() const;

 private:
  int rank_;
  size_t spans_per_row_;
  mutable std::mutex mutex_;  // guards rows_, not what is in them
  std::deque<TraceRow> rows_;
};

class Span {
 public:
  Span(TraceRow* row, std::string_view name, const char* category);
  ~Span() { end(); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  void arg(const char* key, int64_t value);  // the first three are kept
  void flow_to(uint64_t id) { record_.flow_out = id; }
  void flow_from(uint64_t id) { record_.flow_in = id; }
  void end();

 private:
  TraceRow* row_;
  int num_args_ = 0;
  SpanRecord record_;
};

// One trace of several ranks': rank k's times are moved by clock_offsets_ns[k] (what must be added to its clock to get
// the common one). Ranks of one host share a clock: offset 0.
Json merge_traces(std::span<const Json> traces, std::span<const int64_t> clock_offsets_ns);

// Throws IoError. The file appears whole or not at all.
void write_trace(const std::string& path, const Json& trace);

}  // namespace esp::obs
