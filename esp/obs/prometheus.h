// Exports the state of runs in Prometheus' text format (version 0.0.4): the last line of each run folder's
// metrics.jsonl, its summary.json and its ranks/rank-K.json, if present. Reads the files at every call; stateless.
//
// Every sample has the label run="<name>". Values that a run has not written yet are omitted. Does not follow symbolic
// links; a file that cannot be read is counted in espalier_unreadable_files and affects nothing else. Any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace esp::obs {

inline constexpr std::string_view kPrometheusType = "text/plain; version=0.0.4";

struct NamedRun {
  std::string name, folder;
};

// Throws IoError if a folder does not exist.
std::string prometheus_text(const std::vector<NamedRun>& runs);

// Escapes a label value (the text between the quotes): \, " and line ends are escaped, invalid UTF-8 is replaced.
std::string prometheus_label(std::string_view value);

}  // namespace esp::obs
