// Merges the output of many ranks into one readable stream: whole lines, a `[rank k]` prefix, and a line that several
// ranks say at about the same time printed once as `[ranks 0-7]`. Each rank's lines keep their order. Pure: time comes
// in as an argument. One thread at a time.
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
  // Streams are numbered from 0; in what is printed, from `first_rank`.
  explicit LineMerger(int num_ranks, int first_rank = 0)
      : num_ranks_(num_ranks), first_rank_(first_rank), partial_(static_cast<size_t>(num_ranks)) {}

  void feed(int rank, std::string_view bytes, Clock::time_point now);
  // Ends a rank's stream: a last line without a newline is a line.
  void end(int rank, Clock::time_point now);
  // Forgets the error a rank ended with («espalier: …» and what follows), where it still waits.
  void drop_error(int rank);
  // Lines that need not wait any longer for another rank to say the same.
  std::vector<std::string> take(Clock::time_point now, bool all = false);
  bool pending() const { return !lines_.empty(); }

  static constexpr Duration kWindow = std::chrono::milliseconds(50);

 private:
  struct Line {
    std::string text;
    std::set<int> ranks;
    Clock::time_point since;
  };
  void add(int index, std::string text, Clock::time_point now);

  int num_ranks_, first_rank_;
  std::vector<std::string> partial_;
  std::deque<Line> lines_;
};

// {0,1,2,5} is "ranks 0-2,5"; {3} is "rank 3".
std::string name_ranks(const std::set<int>& ranks);

}  // namespace esp::launch
