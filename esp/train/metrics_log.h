// metrics.jsonl and events.jsonl of a run folder, and what happens when they cannot be written: a full disk ends no
// run. The first failure of a file is one warning with its path and the reason.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "esp/base/log.h"
#include "esp/ckpt/steps.h"
#include "esp/obs/event_log.h"

namespace esp::train {

// The step of a line of a log, or another count of a summary: 0 where the key is absent, nothing where the value is no
// step number.
template <typename AnyJson>
std::optional<int64_t> logged_step(const AnyJson& line, const char* key = "step") {
  const auto found = line.find(key);
  if (found == line.end()) return 0;
  if (!found->is_number_integer() || *found < 0 || *found > ckpt::kMaxStep) return std::nullopt;
  return found->template get<int64_t>();
}

// Files that a run can do without. One thread.
class OptionalFiles {
 public:
  explicit OptionalFiles(const Log& log) : log_(log) {}
  // Whether `write` was done. What it throws is a warning, once for each `name`.
  bool attempt(const std::string& name, const std::function<void()>& write);

 private:
  Log log_;
  std::set<std::string> failed_;
};

// Appends to events.jsonl; a warning where that fails.
void append_event(const Log& log, const std::string& folder, Json event);

// metrics.jsonl: one line per logged step, in order. Lines that could not be written are kept, the newest 1024 of them,
// and written before the next one. The first rank's.
class MetricsLog {
 public:
  // Drops lines of steps after `last_step`, which a resumed run makes again. IoError: the file cannot be read.
  MetricsLog(const std::string& folder, int64_t last_step, const Log& log);

  // `line` has a "step".
  void append(Json line, OptionalFiles& files);
  // To events.jsonl, where lines of steps until `step` are missing: after a loss of power the file may end before the
  // checkpoint the run goes on from.
  void report_gap(int64_t step, int64_t every);

  // Of the last line kept from before: 0 where there was none.
  int64_t last_step() const { return last_step_; }
  double last_loss() const { return last_loss_; }
  std::optional<double> last_val_loss() const { return last_val_loss_; }

 private:
  void read(int64_t last_step);
  void write_kept();

  std::string folder_, path_;
  Log log_;
  std::unique_ptr<obs::EventLog> file_;  // opened with the first line
  std::deque<Json> kept_;                // not written yet
  int64_t first_dropped_ = 0, last_dropped_ = 0;
  bool was_there_ = false;
  int64_t last_step_ = 0;
  double last_loss_;
  std::optional<double> last_val_loss_;
};

}  // namespace esp::train
