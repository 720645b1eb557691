// How runs stand now, in Prometheus' text format (version 0.0.4): the last line of each run folder's metrics.jsonl, its
// summary.json and its ranks/rank-K.json where they are there. Read anew at every call; nothing is kept.
//
// Every sample carries run="<name>". What a run has not written yet is left out. Files are not opened through symbolic
// links; one that cannot be read is counted in espalier_unreadable_files and spoils nothing else. Any thread may call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace esp::obs {

inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4";

struct NamedRun {
  std::string name, folder;
};

// IoError: a folder that is not there.
std::string prometheus_text(const std::vector<NamedRun>& runs);

// A label's value as it stands between quotes: \, " and line ends escaped, what is no UTF-8 replaced.
std::string prometheus_label(std::string_view value);

}  // namespace esp::obs
