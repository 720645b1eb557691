// metrics.jsonl as columns, read incrementally and downsampled for plots.
//
// A plot of 10^5 steps on 800 pixels gets the minimum, maximum and mean per pixel. So peaks stay visible, and the size
// of the response depends only on the screen. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace esp::dash {

class Series {
 public:
  // Adds one line of the log. Numeric and boolean fields become values. A line without "step" is ignored and returns
  // false.
  bool add_line(std::string_view line);
  void clear();

  size_t size() const { return steps_.size(); }
  int64_t last_step() const { return steps_.empty() ? 0 : static_cast<int64_t>(steps_.back()); }
  double last(const std::string& key) const;    // value in the last line; NaN: that line has none
  double latest(const std::string& key) const;  // value in the last line that has this key; NaN: no line has it
  double last_gap_s() const;                    // wall-clock seconds between the last two lines; 0: unknown
  std::vector<std::string> keys() const;

  // JSON {"x":[…],"mean":[…],"min":[…],"max":[…]} for the steps between `from` and `to`, inclusive. min and max are
  // omitted if each point is a single value. Steps without a value are skipped.
  std::string downsample(const std::string& key, double from, double to, int buckets) const;

  // A gap in the log: the time from the previous line to this one is much longer than a step takes.
  struct Gap {
    double step = 0, at_s = 0, seconds = 0;
  };
  std::vector<Gap> gaps() const;

  // How often a rank was the slowest, and how long the other ranks waited for it on average.
  struct SlowestRank {
    int64_t rank = 0, steps = 0;
    double waited_ms = 0;
  };
  std::vector<SlowestRank> slowest_ranks() const;

 private:
  const std::vector<double>* column(const std::string& key) const;

  std::vector<double> steps_;
  std::map<std::string, std::vector<double>, std::less<>> columns_;  // NaN: the line lacks this field
};

// Series of only the last few lines of a log, for a list of many runs. Empty if the file does not exist.
Series last_lines(const std::string& path);

// Follows one growing file by its byte offset. A file that was truncated or replaced is read from the beginning.
class SeriesFile {
 public:
  explicit SeriesFile(std::string path) : path_(std::move(path)) {}
  // Reads new lines; true if there were any. A file that does not exist is empty. Damaged lines are counted and
  // skipped.
  bool follow();
  const Series& series() const { return series_; }
  uint64_t offset() const { return offset_; }
  uint64_t version() const { return version_; }  // increases with every change
  int64_t num_damaged() const { return num_damaged_; }

 private:
  std::string path_;
  Series series_;
  uint64_t offset_ = 0, inode_ = 0, version_ = 0;
  int64_t num_damaged_ = 0;
};

}  // namespace esp::dash
