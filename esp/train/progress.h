// The line a person watches. On a terminal one live line that rewrites itself, with what is left to do; elsewhere one
// plain line per logged step. Everything goes to stderr.
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
    bool live = false, colour = false;
    int columns = 80;
    int64_t steps = 0;  // of the whole run
  };
  explicit Progress(const Options& options, std::FILE* out = stderr) : options_(options), out_(out) {}
  ~Progress();

  void step(const StepReport& report, bool logged);
  void note(const std::string& line);  // a line of its own, above the live one

 private:
  std::string line_of(const StepReport& report) const;
  void clear_live();
  void put(const std::string& text);

  Options options_;
  std::FILE* out_;
  bool live_shown_ = false;
  double mean_seconds_ = 0;  // of recent steps
};

std::string format_bytes(uint64_t bytes);                    // "1.25 GiB"
std::string format_seconds(double seconds);                  // "3m12s"
std::string counted(int64_t number, std::string_view what);  // "1 step", "2 steps"

}  // namespace esp::train
