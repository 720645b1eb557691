// Finds run folders and gives each run a unique name.
#pragma once

#include <string>
#include <vector>

namespace esp::dash {

// Whether the folder has run.toml or metrics.jsonl. Also true for an unreadable folder, so that the list of runs shows
// its error.
bool is_run_folder(const std::string& path);

struct FoundRun {
  std::string path, name;
};

// If `folder` is a run, only this run. Otherwise the runs at most two levels below it, each named by its path relative
// to `folder`. Symbolic links below it are not followed. Unreadable folders are listed.
std::vector<FoundRun> find_runs(const std::string& folder);

// The runs of all folders in the given order, without duplicates. A name is the last part of the path, extended to the
// left until it is unique: a/base and b/base. For a folder without a run, adds an error message to `refused`, or
// throws IoError if `refused` is not given.
std::vector<FoundRun> find_all_runs(const std::vector<std::string>& folders,
                                    std::vector<std::string>* refused = nullptr);

}  // namespace esp::dash
