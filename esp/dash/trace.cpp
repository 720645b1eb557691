#include "esp/dash/trace.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <thread>

#include "esp/base/error.h"
#include "esp/dash/json_text.h"
#include "esp/dash/trace_reader.h"

namespace esp::dash {
namespace {

constexpr size_t kPartBytes = size_t{8} << 20;  // a smaller text is parsed in less time than a thread needs to start

// Parses the list of events that begins at `at`. Returns the position after its closing bracket, or npos.
//
// A long list is split at positions where an event seems to begin, and threads parse the parts. A split may be wrong:
// it may be inside a string or an event. Then the part before it does not end at the split, and the list is parsed
// again in one piece.
size_t take_events(TraceReader& reader, std::string_view text, size_t at, size_t num_parts) {
  constexpr size_t kBroken = TraceReader::kBroken;
  std::vector<size_t> begins = {at};
  for (size_t i = 1; i < num_parts; ++i) {
    const size_t cut = text.find("},{", std::max(begins.back(), at + (text.size() - at) / num_parts * i));
    if (cut != kBroken) begins.push_back(cut + 2);
  }
  if (begins.size() == 1) return reader.read_events(text, at);
  std::vector<TraceReader> readers(begins.size());
  std::vector<std::future<size_t>> ends;
  for (size_t i = 0; i < begins.size(); ++i)
    ends.push_back(std::async(std::launch::async, [&readers, &begins, text, i] {
      pthread_setname_np(pthread_self(), "esp-trace");
      return readers[i].read_events(text, begins[i], i + 1 < begins.size() ? begins[i + 1] : kBroken);
    }));
  bool as_cut = true;
  for (size_t i = 0; i < ends.size(); ++i) try {
      at = ends[i].get();
      as_cut = as_cut && (i + 1 == ends.size() || at == begins[i + 1]);
    } catch (const IoError&) {  // possibly the split was not at the beginning of an event
      as_cut = false;
    }
  if (!as_cut) return reader.read_events(text, begins.front());
  for (TraceReader& part : readers) reader.merge(std::move(part));
  return at;
}

bool computes(SpanKind kind) {
  return kind == SpanKind::forward || kind == SpanKind::backward || kind == SpanKind::weights;
}

// A rank's step ends with its update, so steps are numbered by counting updates. The window of a step covers all ranks.
// An update without compute before it belongs to a step that began before the trace.
std::vector<TraceStep> steps_of(const Trace& trace) {
  std::vector<TraceStep> steps;
  size_t common = trace.ranks.empty() ? 0 : SIZE_MAX;
  for (const TraceRank& rank : trace.ranks) {
    size_t step = 0;
    bool computed = false, updating = false;
    if (rank.lines.empty()) {
      common = 0;
      continue;
    }
    for (const Segment& s : rank.lines.front().segments) {
      if (s.kind == SpanKind::update) updating = computed;
      if (!computes(s.kind)) continue;
      if (updating) ++step;
      computed = true;
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

// Reads the events of one file; returns the number of dropped spans that the file reports.
uint64_t read_file(TraceReader& reader, std::string_view text, size_t num_parts) {
  constexpr size_t kBroken = std::string_view::npos;
  uint64_t dropped = 0;
  // This loop parses the outermost object. for_each_field would scan the events, which are most of the file, a second
  // time.
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
      at = take_events(reader, text, at + 1, num_parts);
    } else {
      const size_t value = value_end(text, at);
      if (key == "\"otherData\"" && value != kBroken)
        for_each_field(text.substr(at, value - at), [&](std::string_view name, std::string_view number) {
          if (name == "dropped_spans")
            dropped = static_cast<uint64_t>(std::clamp(parse_number(number).value_or(0), 0.0, 1e15));
        });
      at = value;
    }
    if (at == kBroken) break;
    at = skip_space(text, at);
    whole = at < text.size() && text[at] == '}';
    if (whole || at >= text.size() || text[at] != ',') break;
    at = skip_space(text, at + 1);
  }
  if (!whole || !found)
    throw IoError("trace.json: got no complete list \"traceEvents\"; the file is damaged or truncated");
  return dropped;
}

}  // namespace

Trace parse_traces(std::span<const std::string_view> texts, size_t num_parts) {
  TraceReader reader;
  uint64_t dropped = 0;
  for (const std::string_view text : texts) {
    const size_t most = std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8);
    dropped +=
        read_file(reader, text, num_parts > 0 ? num_parts : std::clamp<size_t>(text.size() / kPartBytes, 1, most));
  }
  Trace trace = reader.finish();
  trace.dropped = dropped;
  trace.steps = steps_of(trace);
  return trace;
}

Trace parse_trace(std::string_view text, size_t num_parts) {
  return parse_traces({&text, 1}, num_parts);
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
