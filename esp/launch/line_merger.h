// LineMerger: merges the output of many ranks into one readable stream of whole lines with a `[rank k]` prefix. A line
// that several ranks print within kWindow appears once, as `[ranks 0-7]`. The lines of each rank keep their order.
// Pure: time is an argument. One thread at a time.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "esp/base/clock.h"

namespace esp::launch {

class LineMerger {
 public:
  // The streams are numbered from 0. The rank numbers in the output start at `first_rank`.
  explicit LineMerger(int num_ranks, int first_rank = 0)
      : num_ranks_(num_ranks), first_rank_(first_rank), partial_(static_cast<size_t>(num_ranks)) {}

  void feed(int rank, std::string_view bytes, Clock::time_point now);
  // Ends the stream of a rank. If its last line has no newline, it still counts as a line.
  void end(int rank, Clock::time_point now);
  // Drops the pending error of a rank: the line «espalier: …» and the lines after it.
  void drop_error(int rank);
  // Returns the lines that have waited for kWindow or were printed by all ranks; with `all`, every pending line.
  std::vector<std::string> take(Clock::time_point now, bool all = false);
  bool pending() const { return !lines_.empty(); }

  static constexpr Duration kWindow = std::chrono::milliseconds(50);

 private:
  struct MergedLine {
    std::string text;
    std::set<int> ranks;
    Clock::time_point since;
  };
  void add(int index, std::string text, Clock::time_point now);

  int num_ranks_, first_rank_;
  std::vector<std::string> partial_;
  std::deque<MergedLine> lines_;
};

// Formats ranks as text: {0,1,2,5} becomes "ranks 0-2,5", and {3} becomes "rank 3".
std::string format_ranks(const std::set<int>& ranks);

}  // namespace esp::launch
