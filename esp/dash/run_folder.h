// One run folder, read as it grows. Files are opened read-only, never through a symbolic link, and only by the names
// the trainer gives them; whatever is wrong with one is said in its place and spoils nothing else.
//
// Thread-safe. The trace has a mutex of its own, so that reading a long one does not hold up the curves.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/dash/find_runs.h"
#include "esp/dash/series.h"
#include "esp/dash/trace.h"
#include "esp/dash/traffic.h"

namespace esp::dash {

// What the app knows and this room does not: the planner's view of a run (from the text of its run file and its number
// of ranks), and how algorithms share their bytes.
struct Knowledge {
  std::function<Json(const std::string& run_toml, int world)> plan_of_run;
  PeerShares peer_shares;
  // For a report: {"text", "prompt", "step", "seed"} of the run's newest checkpoint, or {"none": why there is none}.
  std::function<Json(const std::string& folder)> sample;
};

inline constexpr const char* kUnreadable = "unreadable";  // the state of a run whose row.error says why

class RunFolder {
 public:
  RunFolder(std::string path, std::string name);

  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  // The run's entry in a list of runs; of its log only what is new at the end is read. `row` is its row in a
  // comparison. Never throws for what the folder holds: the state is then "unreadable" and row.error says why. Waits
  // for no other request of the run.
  Json brief();
  // Everything but curves and timeline.
  std::string detail(const Knowledge& knowledge);
  std::string series(const std::vector<std::string>& keys, double from, double to, int buckets);
  std::string timeline(double from_us, double to_us, int buckets);  // IoError: no trace, or a bad one

 private:
  std::optional<std::string> text_of(const std::string& file, size_t max_bytes) const;
  Json json_of(const std::string& file) const;  // null: not there; {"error": …}: bad
  std::vector<Json> rank_files() const;
  Json incidents() const;
  Json known(const Knowledge& knowledge) const;
  Json readable_brief();
  Json row(const Series& series);
  std::string stamp() const;   // changes when anything but the log does
  bool trace_goes_on() const;  // the run is under way, and each rank has written its own so far
  std::string trace_mark() const;
  Trace read_trace() const;

  std::string path_, name_;
  std::mutex mutex_;  // guards what follows
  SeriesFile metrics_;
  std::string detail_stamp_;
  std::string detail_;    // JSON, open at its end
  std::mutex row_mutex_;  // guards what follows; taken after mutex_
  std::string row_stamp_;
  std::string row_;         // JSON: what run.toml and summary.json give of the row
  std::mutex trace_mutex_;  // guards what follows; never taken together with the other
  std::string trace_stamp_;
  std::optional<Trace> trace_;
};

}  // namespace esp::dash
