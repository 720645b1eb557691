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
#include "esp/dash/series.h"
#include "esp/dash/trace.h"
#include "esp/dash/traffic.h"

namespace esp::dash {

// What the app knows and this room does not: the planner's view of a run (from the text of its run file and its number
// of ranks), and how algorithms share their bytes.
struct Knowledge {
  std::function<Json(const std::string& run_toml, int world)> plan_of_run;
  PeerShares peer_shares;
};

class RunFolder {
 public:
  RunFolder(std::string path, std::string name);

  const std::string& name() const { return name_; }
  // A few words of the run, for the list: no more is read than what is new at the end of its log.
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
  std::string stamp() const;   // changes when anything but the log does
  bool trace_goes_on() const;  // the run is under way, and each rank has written its own so far
  std::string trace_mark() const;
  Trace read_trace() const;

  std::string path_, name_;
  std::mutex mutex_;  // guards what follows
  SeriesFile metrics_;
  std::string detail_stamp_;
  std::string detail_;      // JSON, open at its end
  std::mutex trace_mutex_;  // guards what follows; never taken together with the other
  std::string trace_stamp_;
  std::optional<Trace> trace_;
};

bool is_run_folder(const std::string& path);

}  // namespace esp::dash
