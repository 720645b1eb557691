// Events of a trace, gathered by rank and line as they are read and made segments of at the end.
//
// One thread. Parts of a long file may be read by a reader each and joined in the file's order: what comes out is what
// one reader would have made of the whole.
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

  // Events of a list, from the one at `at` on, to the list's end or to the first that begins at `until` or later. Where
  // it stopped: behind the closing bracket, at that event, or kBroken.
  size_t take(std::string_view text, size_t at, size_t until = std::string_view::npos);
  void join(TraceReader&& later);
  Trace finish();  // but for its steps

 private:
  using Key = std::pair<int64_t, int64_t>;  // rank, line
  struct Event {
    std::string_view ph, name, category, arg_name;
    double pid = -1, tid = 0, ts = -1, dur = -1;
  };
  struct RawSpan {
    double begin = 0, end = 0;
    SpanKind kind = SpanKind::other;
    uint32_t name = 0;
  };

  static Event event_of(std::string_view all, size_t& at);
  static void push(std::vector<Segment>& out, double begin, double end, const std::vector<const RawSpan*>& open,
                   double zero);
  static std::vector<Segment> flattened(const std::vector<RawSpan>& spans, double zero);

  void add(const Event& e);
  std::vector<RawSpan>& row(const Key& key);
  uint32_t name_id(std::string_view name);

  uint64_t num_spans_ = 0;
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, uint32_t> ids_;  // views of names_, whose strings stay where they are
  std::map<int64_t, std::string> process_names_;
  std::map<Key, std::string> line_names_;
  std::map<Key, std::vector<RawSpan>> spans_;
  std::array<std::pair<Key, std::vector<RawSpan>*>, 2> last_rows_ = {};
  size_t next_row_ = 0;
};

}  // namespace esp::dash
