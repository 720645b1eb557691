#include "esp/dash/trace.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "esp/base/error.h"
#include "esp/dash/plain_text.h"

namespace esp::dash {
namespace {

constexpr size_t kMaxRanks = 4096, kMaxLines = 64;

struct RawSpan {
  double begin = 0, end = 0;
  SpanKind kind = SpanKind::other;
  uint32_t name = 0;
};

// By what a span is called: whole passes of one device, or actions of a pipeline ("F3", "B3", "I3", "W3").
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

struct Event {
  std::string_view ph, name, category, arg_name;
  double pid = -1, tid = 0, ts = -1, dur = -1;
};

// The event that begins at `at`, which becomes its end (npos: broken).
Event event_of(std::string_view all, size_t& at) {
  Event event;
  at = walk_object(all, at, [&](std::string_view key, std::string_view value) {
    const auto text = [&] { return value.size() >= 2 && value[0] == '"' ? value.substr(1, value.size() - 2) : value; };
    if (key == "ph")
      event.ph = text();
    else if (key == "name")
      event.name = text();
    else if (key == "cat")
      event.category = text();
    else if (key == "pid")
      event.pid = number_of(value).value_or(-1);
    else if (key == "tid")
      event.tid = number_of(value).value_or(0);
    else if (key == "ts")
      event.ts = number_of(value).value_or(-1);
    else if (key == "dur")
      event.dur = number_of(value).value_or(-1);
    else if (key == "args" && event.ph == "M")
      for_each_field(value, [&](std::string_view arg, std::string_view given) {
        if (arg == "name") event.arg_name = given;
      });
  });
  return event;
}

class Reader {
 public:
  void take(const Event& e) {
    if (e.pid < 0 || e.pid > 1e6 || e.tid < 0 || e.tid > 1e6) return;
    const std::pair key(static_cast<int64_t>(e.pid), static_cast<int64_t>(e.tid));
    if (e.ph == "M" && e.name == "process_name") process_names_[key.first] = string_of(e.arg_name);
    if (e.ph == "M" && e.name == "thread_name") line_names_[key] = string_of(e.arg_name);
    if (e.ph != "X" || e.ts < 0 || e.dur < 0) return;
    row(key).push_back({e.ts, e.ts + e.dur, kind_of(e.name, e.category), name_id(e.name)});
    ++num_spans_;
  }

  Trace finish() {
    Trace trace;
    trace.num_spans = num_spans_;
    trace.names.assign(names_.begin(), names_.end());
    double begin = 1e300, end = 0;
    for (auto& [key, spans] : spans_) {
      // Outer spans first: of two that begin together the longer holds the other.
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
      trace.ranks.back().lines.push_back({name == line_names_.end() ? "" : name->second, flattened(spans, begin)});
      spans = {};
    }
    return trace;
  }

 private:
  using Key = std::pair<int64_t, int64_t>;  // rank, line

  // Neighbours in the file are neighbours in the trace: mostly one of the last two is meant.
  std::vector<RawSpan>& row(const Key& key) {
    for (const auto& [of, spans] : last_rows_)
      if (spans && of == key) return *spans;
    auto [at, fresh] = spans_.try_emplace(key);
    if (fresh && (spans_.size() > kMaxRanks * kMaxLines)) throw IoError("trace.json: more rows than can be shown");
    last_rows_[next_row_++ % last_rows_.size()] = {key, &at->second};
    return at->second;
  }

  // Views of names_, whose strings stay where they are.
  uint32_t name_id(std::string_view name) {
    const auto at = ids_.find(name);
    if (at != ids_.end()) return at->second;
    const auto id = static_cast<uint32_t>(names_.size());
    ids_.emplace(names_.emplace_back(name), id);
    return id;
  }

  // Passes of an evaluation are no part of a step.
  static void push(std::vector<Segment>& out, double begin, double end, const std::vector<const RawSpan*>& open,
                   double zero) {
    if (end <= begin) return;
    const RawSpan& of = *open.back();
    const bool evaluating =
        open.front()->kind == SpanKind::evaluate && of.kind != SpanKind::communication && of.kind != SpanKind::waiting;
    out.push_back({begin - zero, end - zero, evaluating ? SpanKind::evaluate : of.kind, of.name});
  }

  static std::vector<Segment> flattened(const std::vector<RawSpan>& spans, double zero) {
    std::vector<Segment> out;
    out.reserve(spans.size());
    std::vector<const RawSpan*> open;
    double at = 0;  // all before is told
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

  uint64_t num_spans_ = 0;
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, uint32_t> ids_;
  std::map<int64_t, std::string> process_names_;
  std::map<Key, std::string> line_names_;
  std::map<Key, std::vector<RawSpan>> spans_;
  std::array<std::pair<Key, std::vector<RawSpan>*>, 2> last_rows_ = {};
  size_t next_row_ = 0;
};

// Behind the list's closing bracket, or npos.
size_t take_events(Reader& reader, std::string_view text, size_t at) {
  for (;;) {
    at = skip_space(text, at);
    if (at >= text.size()) return std::string_view::npos;
    if (text[at] == ']') return at + 1;
    if (text[at] == ',') {
      ++at;
    } else if (text[at] == '{') {
      const Event event = event_of(text, at);
      if (at == std::string_view::npos) return at;
      reader.take(event);
    } else {
      at = value_end(text, at);
    }
  }
}

bool computes(SpanKind kind) {
  return kind == SpanKind::forward || kind == SpanKind::backward || kind == SpanKind::weights;
}

// A rank's step ends with its update. Steps are told apart by counting them; a window is that of all ranks.
std::vector<TraceStep> steps_of(const Trace& trace) {
  std::vector<TraceStep> steps;
  size_t common = trace.ranks.empty() ? 0 : SIZE_MAX;
  for (const TraceRank& rank : trace.ranks) {
    size_t step = 0;
    bool updating = false;
    if (rank.lines.empty()) {
      common = 0;
      continue;
    }
    for (const Segment& s : rank.lines.front().segments) {
      if (s.kind == SpanKind::update) updating = true;
      if (!computes(s.kind)) continue;
      if (updating) ++step;
      updating = false;
      if (steps.size() <= step) steps.push_back({s.begin_us, s.end_us, 0});
      steps[step].begin_us = std::min(steps[step].begin_us, s.begin_us);
      steps[step].end_us = std::max(steps[step].end_us, s.end_us);
      steps[step].busy_us += s.end_us - s.begin_us;
    }
    common = std::min(common, updating ? step + 1 : step);
  }
  steps.resize(std::min(steps.size(), common));
  return steps;
}

// One file's events to the reader; how many spans it says were dropped.
uint64_t read_file(Reader& reader, std::string_view text) {
  constexpr size_t kBroken = std::string_view::npos;
  uint64_t dropped = 0;
  // The outermost object is walked here rather than by for_each_field: its events are most of a long file, and would be
  // passed over twice.
  bool found = false, whole = false;
  size_t at = skip_space(text, 0);
  if (at < text.size() && text[at] == '{') at = skip_space(text, at + 1);
  while (at < text.size() && text[at] == '"') {
    const size_t end = value_end(text, at);
    if (end == kBroken) break;
    const std::string_view key = text.substr(at, end - at);
    at = skip_space(text, end);
    if (at >= text.size() || text[at] != ':') break;
    at = skip_space(text, at + 1);
    if (key == "\"traceEvents\"" && at < text.size() && text[at] == '[') {
      found = true;
      at = take_events(reader, text, at + 1);
    } else {
      const size_t value = value_end(text, at);
      if (key == "\"otherData\"" && value != kBroken)
        for_each_field(text.substr(at, value - at), [&](std::string_view name, std::string_view number) {
          if (name == "dropped_spans")
            dropped = static_cast<uint64_t>(std::clamp(number_of(number).value_or(0), 0.0, 1e15));
        });
      at = value;
    }
    if (at == kBroken) break;
    at = skip_space(text, at);
    whole = at < text.size() && text[at] == '}';
    if (whole || at >= text.size() || text[at] != ',') break;
    at = skip_space(text, at + 1);
  }
  if (!whole || !found) throw IoError("trace.json: not a trace, or cut short");
  return dropped;
}

}  // namespace

Trace parse_traces(std::span<const std::string_view> texts) {
  Reader reader;
  uint64_t dropped = 0;
  for (const std::string_view text : texts) dropped += read_file(reader, text);
  Trace trace = reader.finish();
  trace.dropped = dropped;
  trace.steps = steps_of(trace);
  return trace;
}

Trace parse_trace(std::string_view text) {
  return parse_traces({&text, 1});
}

std::string_view name_of(SpanKind kind) {
  constexpr std::array<std::string_view, kNumSpanKinds> kNames = {
      "forward", "backward", "weight gradients", "update", "communication", "waiting", "evaluation", "host and other"};
  return kNames[static_cast<size_t>(kind)];
}

double TraceStep::bubble(size_t num_ranks) const {
  return busy_us > 0 ? (end_us - begin_us) * static_cast<double>(num_ranks) / busy_us - 1 : 0;
}

}  // namespace esp::dash
