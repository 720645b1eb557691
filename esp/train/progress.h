// The progress of a run. Step lines go to stdout: on a terminal one live line that is rewritten in place and ends with
// the time left, elsewhere one plain line per logged step, flushed at its end. Notes go to stderr. A stdout that cannot
// be written (a closed pipe, a full disk) ends the step lines with one warning on stderr; it does not end the run.
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
    bool one_screen = false;  // and stderr is the same one: notes go through stdout too, so that their order is kept
    int columns = 80;
    int64_t steps = 0;  // of the whole run
    int num_ranks = 1;
    std::string method = {};  // and the compressor: "allreduce int8 + ef"
  };
  explicit Progress(const Options& options, std::FILE* out = stdout, std::FILE* notes = stderr)
      : options_(options), out_(out), notes_(notes) {}
  ~Progress();

  void step(const StepReport& report, bool logged);
  void note(const std::string& line);  // a line of its own, above the live one

 private:
  std::string line_of(const StepReport& report) const;
  void clear_live();
  void put(const std::string& text);

  Options options_;
  std::FILE* out_;  // null once it cannot be written
  std::FILE* notes_;
  bool live_shown_ = false;
  double mean_seconds_ = 0;  // of recent steps
};

// Writes and flushes. Where that fails the text is dropped and the stream is usable again; returns why, or nothing.
std::string put_text(std::FILE* out, const std::string& text);

std::string format_seconds(double seconds);                  // "3m12s"
std::string counted(int64_t number, std::string_view what);  // "1 step", "2 steps"

}  // namespace esp::train
