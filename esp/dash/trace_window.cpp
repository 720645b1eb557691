// A window of a trace as the page draws it.
#include <algorithm>
#include <cmath>

#include "esp/dash/json_text.h"
#include "esp/dash/trace.h"

namespace esp::dash {
namespace {

constexpr int kMaxBuckets = 8000;
constexpr size_t kMaxSegments = 120000;  // maximum per window; more segments would slow the browser down

// Segments that lie within one pixel, merged into one.
struct MergedSegment {
  double begin = 0, end = 0, longest = -1;
  std::array<double, kNumSpanKinds> by_kind{};
  uint32_t name = 0;
  int64_t count = 0;

  void add(const Segment& s) {
    if (count == 0) begin = s.begin_us;
    end = s.end_us;
    by_kind[static_cast<size_t>(s.kind)] += s.end_us - s.begin_us;
    if (s.end_us - s.begin_us > longest) {
      longest = s.end_us - s.begin_us;
      name = s.name;
    }
    ++count;
  }
  size_t kind() const {
    return static_cast<size_t>(std::max_element(by_kind.begin(), by_kind.end()) - by_kind.begin());
  }
};

void append_segment(std::string& out, double begin, double end, size_t kind, uint32_t name, int64_t count) {
  if (out.back() != '[') out += ',';
  constexpr double kNanosecondsEnd = 0x1p43;  // beyond this time, a double cannot represent single nanoseconds
  append_exact_number(out, begin < kNanosecondsEnd ? std::trunc(begin * 1000) / 1000 : begin);
  out += ',';
  append_number(out, end - begin);
  out += ',' + std::to_string(kind) + ',' + std::to_string(name) + ',' + std::to_string(count);
}

void append_line(std::string& out, const TraceTrack& line, double from, double to, double pixel) {
  out += "{\"name\":" + quote_json(line.name) + ",\"segments\":[";
  auto at = std::lower_bound(line.segments.begin(), line.segments.end(), from,
                             [](const Segment& s, double time) { return s.end_us < time; });
  MergedSegment merged;
  const auto flush = [&] {
    if (merged.count > 0) append_segment(out, merged.begin, merged.end, merged.kind(), merged.name, merged.count);
    merged = {};
  };
  for (; at != line.segments.end() && at->begin_us <= to; ++at) {
    const bool wide = at->end_us - at->begin_us >= pixel;
    if (merged.count > 0 && (wide || at->end_us - merged.begin > pixel || at->begin_us - merged.end > pixel)) flush();
    if (wide)
      append_segment(out, at->begin_us, at->end_us, static_cast<size_t>(at->kind), at->name, 1);
    else
      merged.add(*at);
  }
  flush();
  out += "]}";
}

void append_times(std::string& out, const TraceRank& rank, double from, double to) {
  std::array<double, kNumSpanKinds> times{};
  if (!rank.lines.empty())
    for (const Segment& s : rank.lines.front().segments)
      times[static_cast<size_t>(s.kind)] += std::max(0.0, std::min(to, s.end_us) - std::max(from, s.begin_us));
  out += ",\"times\":[";
  for (size_t i = 0; i < kNumSpanKinds; ++i) {
    if (i > 0) out += ',';
    append_number(out, times[i]);
  }
  out += ']';
}

}  // namespace

std::string window_json(const Trace& trace, double from, double to, int buckets) {
  from = std::clamp(from, 0.0, trace.length_us);
  to = std::clamp(to, from, trace.length_us);
  size_t num_lines = 1;
  for (const TraceRank& rank : trace.ranks) num_lines += rank.lines.size();
  buckets = std::clamp(buckets, 50, std::min(kMaxBuckets, static_cast<int>(kMaxSegments / num_lines) + 50));
  const double pixel = (to - from) / buckets;
  std::string out = "{\"length_us\":";
  append_number(out, trace.length_us);
  for (const auto& [name, value] : {std::pair{"from", from}, {"to", to}}) {
    out += std::string(",\"") + name + "\":";
    append_exact_number(out, value);
  }
  out += ",\"spans\":" + std::to_string(trace.num_spans) + ",\"dropped\":" + std::to_string(trace.dropped);
  out += ",\"kinds\":[";
  for (size_t i = 0; i < kNumSpanKinds; ++i) out += (i ? "," : "") + quote_json(name_of(static_cast<SpanKind>(i)));
  out += "],\"names\":[";
  for (size_t i = 0; i < trace.names.size(); ++i) out += (i ? "," : "") + quote_json(trace.names[i]);
  out += "],\"steps\":[";
  for (size_t i = 0; i < trace.steps.size(); ++i) {
    const TraceStep& s = trace.steps[i];
    out += i ? ",[" : "[";
    append_exact_number(out, s.begin_us);
    out += ',';
    append_exact_number(out, s.end_us);
    out += ',';
    append_number(out, s.bubble(trace.ranks.size()));
    out += ']';
  }
  out += "],\"ranks\":[";
  for (size_t i = 0; i < trace.ranks.size(); ++i) {
    const TraceRank& rank = trace.ranks[i];
    out += std::string(i ? "," : "") + "{\"rank\":" + std::to_string(rank.rank) + ",\"name\":" + quote_json(rank.name);
    append_times(out, rank, from, to);
    out += ",\"lines\":[";
    for (size_t j = 0; j < rank.lines.size(); ++j) {
      if (j > 0) out += ',';
      append_line(out, rank.lines[j], from, to, pixel);
    }
    out += "]}";
  }
  return out + "]}";
}

}  // namespace esp::dash
