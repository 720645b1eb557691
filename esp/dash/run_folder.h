// One run folder, which is read incrementally while it grows. Files are opened read-only by fixed names, never through
// a symbolic link. An error in one file is reported in its own field and does not affect the others.
//
// Thread-safe. The trace has its own mutex, so reading a long trace does not delay curves.
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

// Callbacks that the app provides, for data from modules that dash does not depend on: the planner's estimate of a run
// (from the text of its run file and the number of ranks), and how an algorithm distributes bytes over peers.
struct DataProviders {
  std::function<Json(const std::string& run_toml, int world)> plan_of_run;
  PeerShares peer_shares;
  // Sampled text for reports: {"text", "prompt", "step", "seed"} of the newest checkpoint, or {"none": reason}.
  std::function<Json(const std::string& folder)> sample;
};

// state of a run that cannot be read; row.error has the reason
inline constexpr const char* kUnreadable = "unreadable";

class RunFolder {
 public:
  RunFolder(std::string path, std::string name);

  const std::string& path() const { return path_; }
  const std::string& name() const { return name_; }
  // The run's entry in the list of runs. Its `row` is the run's row in a comparison. Reads only new lines of the log,
  // and does not wait for other requests of the run. Does not throw if a file is unreadable: the state is then
  // "unreadable", and row.error has the reason.
  Json list_entry();
  // All data of the run except curves and timeline, as JSON.
  std::string detail(const DataProviders& providers);
  std::string series(const std::vector<std::string>& keys, double from, double to, int buckets);
  std::string timeline(double from_us, double to_us, int buckets);  // IoError: there is no trace, or it is damaged

 private:
  std::optional<std::string> read_text(const std::string& file, size_t max_bytes) const;
  Json read_json(const std::string& file) const;  // null: no such file; {"error": …}: the file is damaged
  std::vector<Json> rank_files() const;
  Json incidents() const;
  Json provided_data(const DataProviders& providers) const;
  Json readable_list_entry();
  Json row(const Series& series);
  std::string stamp() const;      // changes when a file other than the log changes
  bool is_trace_growing() const;  // the run is active and every rank has written a trace file
  std::string trace_stamp() const;
  Trace read_trace() const;

  std::string path_, name_;
  std::mutex mutex_;  // guards the next three members
  SeriesFile metrics_;
  std::string detail_stamp_;
  std::string detail_;    // JSON object without its closing brace
  std::mutex row_mutex_;  // guards the next two members; locked after mutex_
  std::string row_stamp_;
  std::string row_;         // JSON: the columns that come from run.toml and summary.json
  std::mutex trace_mutex_;  // guards the next two members; never locked together with the other mutexes
  std::string trace_stamp_;
  std::optional<Trace> trace_;
};

}  // namespace esp::dash
