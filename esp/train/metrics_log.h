// metrics.jsonl and events.jsonl of a run folder. If they cannot be written, for example on a full disk, the run
// continues. The first failed write to each file logs one warning with the path and the reason.
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

// The step of a log line, or another count in a summary (`key`). 0 if the key is absent; empty if the value is not a
// valid step number.
template <typename AnyJson>
std::optional<int64_t> logged_step(const AnyJson& line, const char* key = "step") {
  const auto found = line.find(key);
  if (found == line.end()) return 0;
  if (!found->is_number_integer() || *found < 0 || *found > ckpt::kMaxStep) return std::nullopt;
  return found->template get<int64_t>();
}

// Writes files that a run does not depend on: a write error becomes a warning. One thread.
class BestEffortFiles {
 public:
  explicit BestEffortFiles(const Log& log) : log_(log) {}
  // Calls `write` and returns true if it succeeded. An error is logged as a warning, but only once for each `name`.
  bool attempt(const std::string& name, const std::function<void()>& write);

 private:
  Log log_;
  std::set<std::string> failed_;
};

// Appends to events.jsonl; logs a warning on failure.
void append_event(const Log& log, const std::string& folder, Json event);

// Writes metrics.jsonl: one line per logged step, in order; on rank 0 only. If lines cannot be written, the newest 1024
// of them are kept in memory and written before the next line.
class MetricsLog {
 public:
  // Removes the lines of steps after `last_step`, because a resumed run writes them again. IoError if the file cannot
  // be read.
  MetricsLog(const std::string& folder, int64_t last_step, const Log& log);

  // `line` must contain "step".
  void append(Json line, BestEffortFiles& files);
  // If lines up to `step` are missing, records the gap in events.jsonl. After a power loss, the file may end before the
  // step of the checkpoint from which the run resumes.
  void report_gap(int64_t step, int64_t every);

  // Values from the last line that an earlier process wrote. The step is 0 if there is no line.
  int64_t last_step() const { return last_step_; }
  double last_loss() const { return last_loss_; }
  std::optional<double> last_val_loss() const { return last_val_loss_; }

 private:
  void read(int64_t last_step);
  void write_pending();

  std::string folder_, path_;
  Log log_;
  std::unique_ptr<obs::EventLog> file_;  // null until the first line is written
  std::deque<Json> unwritten_;           // lines that could not be written yet
  int64_t first_dropped_ = 0, last_dropped_ = 0;
  bool existed_ = false;
  int64_t last_step_ = 0;
  double last_loss_;
  std::optional<double> last_val_loss_;
};

}  // namespace esp::train
