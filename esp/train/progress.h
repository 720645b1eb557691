// Progress: prints the progress of a run. Step lines go to stdout, notes to stderr. On a terminal there is one live
// line, rewritten in place, with the remaining time. Otherwise each logged step prints one plain line and flushes. If
// stdout cannot be written (closed pipe, full disk), there are no further step lines; stderr gets one warning, and the
// run continues.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace esp::train {

struct StepReport;

class Progress {
 public:
  struct Options {
    bool live = false;        // stdout is a terminal
    bool one_screen = false;  // stderr is the same terminal as stdout; then notes go to stdout, to keep their order
    int columns = 80;
    int64_t steps = 0;  // number of steps of the whole run
    int num_ranks = 1;
    std::string method = {};  // sync method and compressor, for example "allreduce int8 + ef"
  };
  explicit Progress(const Options& options, std::FILE* out = stdout, std::FILE* notes = stderr)
      : options_(options), out_(out), notes_(notes) {}
  ~Progress();

  void step(const StepReport& report, bool logged);
  void note(const std::string& line);  // prints a line above the live line, where it stays

 private:
  std::string line_of(const StepReport& report) const;
  void clear_live();
  void put(const std::string& text);

  Options options_;
  std::FILE* out_;  // null after a write error
  std::FILE* notes_;
  bool live_shown_ = false;
  double mean_seconds_ = 0;  // moving average of the step time, in seconds
};

// Writes the text and flushes. On an error the text is dropped and the error state of the stream is cleared. Returns
// the reason of the error; empty if there was none.
std::string write_text(std::FILE* out, const std::string& text);

std::string format_seconds(double seconds);                       // for example "3m12s"
std::string format_count(int64_t number, std::string_view what);  // for example "1 step" or "2 steps"

}  // namespace esp::train
