// metrics.jsonl as columns: read on from where the last reading ended, and answered as pictures need it, no more than a
// few values per pixel however many steps there are.
//
// A picture of 10^5 steps on 800 pixels shows, per pixel, the least, the greatest and the mean: peaks survive, and the
// answer has the size of the screen. Not thread-safe; the owner locks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace esp::dash {

class Series {
 public:
  // One line of the log. Numbers (and true, false) of fields become values; what has no "step" is left out.
  bool add_line(std::string_view line);
  void clear();

  size_t size() const { return steps_.size(); }
  int64_t last_step() const { return steps_.empty() ? 0 : static_cast<int64_t>(steps_.back()); }
  double last(const std::string& key) const;    // of the last line; NaN: none
  double latest(const std::string& key) const;  // of the last line that has one; NaN: none
  double last_gap_s() const;                    // of the clock, between the last two lines; 0: not known
  std::vector<std::string> keys() const;

  // {"x":[…],"mean":[…],"min":[…],"max":[…]} of steps from ≤ x ≤ to; min and max are left out where every value stands
  // for itself. Steps without the value are passed over.
  std::string picture(const std::string& key, double from, double to, int buckets) const;

  // (step, Unix time) of lines before which the clock ran on much longer than a step takes: the run stood still.
  struct Pause {
    double step = 0, at_s = 0, seconds = 0;
  };
  std::vector<Pause> pauses() const;

  // How often each rank came last, and how long the others then waited on average.
  struct Slowest {
    int64_t rank = 0, steps = 0;
    double waited_ms = 0;
  };
  std::vector<Slowest> slowest() const;

 private:
  const std::vector<double>* column(const std::string& key) const;

  std::vector<double> steps_;
  std::map<std::string, std::vector<double>, std::less<>> columns_;  // NaN where a line has no such field
};

// The last few lines alone, for a list of many runs. A file that is not there has none.
Series last_lines(const std::string& path);

// Follows one file by its byte offset. A file that became shorter, or another one, is read anew.
class SeriesFile {
 public:
  explicit SeriesFile(std::string path) : path_(std::move(path)) {}
  // Whether anything was new. A file that is not there is an empty one; damaged lines are counted and passed over.
  bool follow();
  const Series& series() const { return series_; }
  uint64_t offset() const { return offset_; }
  uint64_t version() const { return version_; }  // grows with every change
  int64_t num_damaged() const { return num_damaged_; }

 private:
  std::string path_;
  Series series_;
  uint64_t offset_ = 0, inode_ = 0, version_ = 0;
  int64_t num_damaged_ = 0;
};

}  // namespace esp::dash
