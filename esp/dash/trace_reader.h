// Collects trace events by rank and track, and finally converts them to segments.
//
// One thread per reader. Several readers can read parts of a long file. They are merged in file order, and the result
// equals that of one reader.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "esp/dash/trace.h"

namespace esp::dash {

class TraceReader {
 public:
  static constexpr size_t kBroken = std::string_view::npos;

  // Reads events of a list, beginning with the one at `at`, until the list ends or an event begins at or after `until`.
  // Returns the position after the closing bracket, or the position of the first event not read, or kBroken if the
  // text is damaged.
  size_t read_events(std::string_view text, size_t at, size_t until = std::string_view::npos);
  void merge(TraceReader&& later);
  Trace finish();  // the trace of all events that were read; its steps are not filled in

 private:
  using Key = std::pair<int64_t, int64_t>;  // (rank, track)
  struct Event {
    std::string_view ph, name, category, arg_name;
    double pid = -1, tid = 0, ts = -1, dur = -1;
  };
  struct RawSpan {
    double begin = 0, end = 0;
    SpanKind kind = SpanKind::other;
    uint32_t name = 0;
  };

  static Event parse_event(std::string_view all, size_t& at);
  static void push(std::vector<Segment>& out, double begin, double end, const std::vector<const RawSpan*>& open,
                   double zero);
  static std::vector<Segment> flatten(const std::vector<RawSpan>& spans, double zero);

  void add(const Event& e);
  std::vector<RawSpan>& row(const Key& key);
  uint32_t name_id(std::string_view name);

  uint64_t num_spans_ = 0;
  std::deque<std::string> names_;
  // the keys point into the strings of names_; a deque does not move its elements
  std::unordered_map<std::string_view, uint32_t> ids_;
  std::map<int64_t, std::string> process_names_;
  std::map<Key, std::string> line_names_;
  std::map<Key, std::vector<RawSpan>> spans_;
  std::array<std::pair<Key, std::vector<RawSpan>*>, 2> last_rows_ = {};
  size_t next_row_ = 0;
};

}  // namespace esp::dash
