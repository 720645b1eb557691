#include "esp/dash/trace_reader.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"

namespace esp::dash {
namespace {

constexpr size_t kMaxRanks = 4096, kMaxLines = 64;

// Kind of a span, from its name: a whole pass on one device, or a pipeline action ("F3", "B3", "I3", "W3").
SpanKind kind_of(std::string_view name, std::string_view category) {
  if (category == "communication") return name == "wait" ? SpanKind::waiting : SpanKind::communication;
  if (category == "host") return SpanKind::other;
  if (name == "optimizer" || name == "update") return SpanKind::update;
  if (name == "evaluate") return SpanKind::evaluate;
  if (name.starts_with("F") || name == "forward") return SpanKind::forward;
  if (name.starts_with("W")) return SpanKind::weights;
  if (name.starts_with("B") || name.starts_with("I") || name == "backward") return SpanKind::backward;
  return SpanKind::other;
}

}  // namespace

// Parses the event that begins at `at` and moves `at` to its end (npos: damaged).
TraceReader::Event TraceReader::parse_event(std::string_view all, size_t& at) {
  Event event;
  at = scan_object(all, at, [&](std::string_view key, std::string_view value) {
    const auto text = [&] { return value.size() >= 2 && value[0] == '"' ? value.substr(1, value.size() - 2) : value; };
    if (key == "ph")
      event.ph = text();
    else if (key == "name")
      event.name = text();
    else if (key == "cat")
      event.category = text();
    else if (key == "pid")
      event.pid = parse_number(value).value_or(-1);
    else if (key == "tid")
      event.tid = parse_number(value).value_or(0);
    else if (key == "ts")
      event.ts = parse_number(value).value_or(-1);
    else if (key == "dur")
      event.dur = parse_number(value).value_or(-1);
    else if (key == "args" && event.ph == "M")
      for_each_field(value, [&](std::string_view arg, std::string_view given) {
        if (arg == "name") event.arg_name = given;
      });
  });
  return event;
}

void TraceReader::add(const Event& e) {
  if (e.pid < 0 || e.pid > 1e6 || e.tid < 0 || e.tid > 1e6) return;
  const std::pair key(static_cast<int64_t>(e.pid), static_cast<int64_t>(e.tid));
  if (e.ph == "M" && e.name == "process_name") process_names_[key.first] = parse_string(e.arg_name);
  if (e.ph == "M" && e.name == "thread_name") line_names_[key] = parse_string(e.arg_name);
  if (e.ph != "X" || e.ts < 0 || e.dur < 0) return;
  row(key).push_back({e.ts, e.ts + e.dur, kind_of(e.name, e.category), name_id(e.name)});
  ++num_spans_;
}

size_t TraceReader::read_events(std::string_view text, size_t at, size_t until) {
  for (;;) {
    at = skip_space(text, at);
    if (at >= text.size()) return kBroken;
    if (text[at] == ']') return at + 1;
    if (text[at] == ',') {
      ++at;
    } else if (at >= until) {
      return at;
    } else if (text[at] == '{') {
      const Event event = parse_event(text, at);
      if (at == kBroken) return at;
      add(event);
    } else {
      at = value_end(text, at);
    }
  }
}

void TraceReader::merge(TraceReader&& later) {
  std::vector<uint32_t> ids;
  for (const std::string& name : later.names_) ids.push_back(name_id(name));
  for (auto& [key, spans] : later.spans_) {
    for (RawSpan& span : spans) span.name = ids[span.name];
    std::vector<RawSpan>& all = row(key);
    if (all.empty())
      all = std::move(spans);
    else
      all.insert(all.end(), spans.begin(), spans.end());
  }
  for (auto& [rank, name] : later.process_names_) process_names_[rank] = std::move(name);
  for (auto& [key, name] : later.line_names_) line_names_[key] = std::move(name);
  num_spans_ += later.num_spans_;
}

Trace TraceReader::finish() {
  Trace trace;
  trace.num_spans = num_spans_;
  trace.names.assign(names_.begin(), names_.end());
  double begin = 1e300, end = 0;
  for (auto& [key, spans] : spans_) {
    // Orders outer spans first: of two spans with the same begin, the longer one.
    const auto outer_first = [](const RawSpan& a, const RawSpan& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    };
    if (!std::is_sorted(spans.begin(), spans.end(), outer_first)) std::sort(spans.begin(), spans.end(), outer_first);
    begin = std::min(begin, spans.front().begin);
    for (const RawSpan& span : spans) end = std::max(end, span.end);
  }
  if (spans_.empty()) return trace;
  trace.length_us = end - begin;
  for (auto& [key, spans] : spans_) {
    if (trace.ranks.empty() || trace.ranks.back().rank != key.first) {
      const auto name = process_names_.find(key.first);
      trace.ranks.push_back({key.first, name == process_names_.end() ? "" : name->second, {}});
    }
    const auto name = line_names_.find(key);
    trace.ranks.back().lines.push_back({name == line_names_.end() ? "" : name->second, flatten(spans, begin)});
    spans = {};
  }
  return trace;
}

// Returns the span list of a row. The last two rows are cached, because most events belong to one of them.
std::vector<TraceReader::RawSpan>& TraceReader::row(const Key& key) {
  for (const auto& [of, spans] : last_rows_)
    if (spans && of == key) return *spans;
  auto [at, fresh] = spans_.try_emplace(key);
  if (fresh && (spans_.size() > kMaxRanks * kMaxLines))
    throw IoError(
        fmt::format("trace.json: got more than {} rows; the dashboard cannot show them", kMaxRanks * kMaxLines));
  last_rows_[next_row_++ % last_rows_.size()] = {key, &at->second};
  return at->second;
}

uint32_t TraceReader::name_id(std::string_view name) {
  const auto at = ids_.find(name);
  if (at != ids_.end()) return at->second;
  const auto id = static_cast<uint32_t>(names_.size());
  ids_.emplace(names_.emplace_back(name), id);
  return id;
}

// Appends a segment for the innermost open span. Forward and backward inside an evaluation do not belong to a step.
void TraceReader::push(std::vector<Segment>& out, double begin, double end, const std::vector<const RawSpan*>& open,
                       double zero) {
  if (end <= begin) return;
  const RawSpan& of = *open.back();
  const bool evaluating =
      open.front()->kind == SpanKind::evaluate && of.kind != SpanKind::communication && of.kind != SpanKind::waiting;
  out.push_back({begin - zero, end - zero, evaluating ? SpanKind::evaluate : of.kind, of.name});
}

std::vector<Segment> TraceReader::flatten(const std::vector<RawSpan>& spans, double zero) {
  std::vector<Segment> out;
  out.reserve(spans.size());
  std::vector<const RawSpan*> open;
  double at = 0;  // all segments before this time have been appended
  const auto close_until = [&](double time) {
    while (!open.empty() && open.back()->end <= time) {
      push(out, at, open.back()->end, open, zero);
      at = std::max(at, open.back()->end);
      open.pop_back();
    }
  };
  for (const RawSpan& span : spans) {
    close_until(span.begin);
    if (!open.empty()) push(out, at, span.begin, open, zero);
    at = std::max(at, span.begin);
    open.push_back(&span);
  }
  close_until(1e300);
  return out;
}

}  // namespace esp::dash
