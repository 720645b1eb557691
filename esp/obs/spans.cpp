#include "esp/obs/spans.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "esp/base/check.h"
#include "esp/obs/file.h"

namespace esp::obs {
namespace {

double microseconds(int64_t ns) {
  return static_cast<double>(ns) / 1000.0;
}

Json metadata(const char* what, int rank, int row, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

Json flow(const char* phase, uint64_t id, int rank, int row, int64_t at_ns) {
  Json event = {{"ph", phase}, {"name", "message"},        {"cat", "flow"}, {"id", id}, {"pid", rank},
                {"tid", row},  {"ts", microseconds(at_ns)}};
  if (*phase == 'f') event["bp"] = "e";  // the arrow ends at the span that encloses this time, not at the next span
  return event;
}

void append(Json& events, const SpanRecord& record, int rank, int row) {
  Json event = {{"ph", "X"},
                {"name", record.name},
                {"cat", record.category},
                {"pid", rank},
                {"tid", row},
                {"ts", microseconds(record.begin_ns)},
                {"dur", microseconds(record.end_ns - record.begin_ns)}};
  for (const SpanArg& arg : record.args)
    if (arg.key) event["args"][arg.key] = arg.value;
  events.push_back(std::move(event));
  if (record.flow_out) events.push_back(flow("s", record.flow_out, rank, row, record.begin_ns));
  if (record.flow_in) events.push_back(flow("f", record.flow_in, rank, row, record.end_ns));
}

}  // namespace

void TraceRow::add(const SpanRecord& record) {
  size_t at = used_.load(std::memory_order_relaxed);
  if (at == records_.size()) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  records_[at] = record;
  used_.store(at + 1, std::memory_order_release);
}

TraceRow* Tracer::add_row(std::string_view name) {
  std::lock_guard lock(mutex_);
  return &rows_.emplace_back(name, spans_per_row_);
}

Json Tracer::trace() const {
  std::lock_guard lock(mutex_);
  Json events = Json::array();
  events.push_back(metadata("process_name", rank_, 0, fmt::format("rank {}", rank_)));
  events.push_back({{"ph", "M"}, {"name", "process_sort_index"}, {"pid", rank_}, {"args", {{"sort_index", rank_}}}});
  uint64_t dropped = 0;
  int tid = 0;
  for (const TraceRow& row : rows_) {
    events.push_back(metadata("thread_name", rank_, tid, row.name()));
    for (const SpanRecord& record : row.records()) append(events, record, rank_, tid);
    dropped += row.dropped();
    ++tid;
  }
  return {{"displayTimeUnit", "ms"}, {"otherData", {{"dropped_spans", dropped}}}, {"traceEvents", std::move(events)}};
}

Span::Span(TraceRow* row, std::string_view name, const char* category) : row_(row) {
  if (!row_) return;
  std::memcpy(record_.name, name.data(), std::min(name.size(), sizeof record_.name - 1));
  record_.category = category;
  record_.begin_ns = now_ns();
}

void Span::arg(const char* key, int64_t value) {
  if (row_ && num_args_ < SpanRecord::kMaxArgs) record_.args[num_args_++] = {key, value};
}

void Span::end() {
  if (!row_) return;
  record_.end_ns = now_ns();
  row_->add(record_);
  row_ = nullptr;
}

Json merge_traces(std::span<const Json> traces, std::span<const int64_t> clock_offsets_ns) {
  ESP_CHECK(traces.size() == clock_offsets_ns.size(),
            "got {} traces and {} clock offsets; expected one offset per trace", traces.size(),
            clock_offsets_ns.size());
  Json events = Json::array();
  uint64_t dropped = 0;
  for (size_t k = 0; k < traces.size(); ++k) {
    dropped += traces[k].at("otherData").at("dropped_spans").get<uint64_t>();
    for (Json event : traces[k].at("traceEvents")) {
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() + microseconds(clock_offsets_ns[k]);
      events.push_back(std::move(event));
    }
  }
  return {{"displayTimeUnit", "ms"}, {"otherData", {{"dropped_spans", dropped}}}, {"traceEvents", std::move(events)}};
}

void write_trace(const std::string& path, const Json& trace) {
  // Invalid UTF-8 is replaced: truncating a long name may split a character.
  write_whole_file(path, trace.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace esp::obs
