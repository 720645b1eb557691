// Run folders by path: which folders are runs, and how each is named among the others.
#pragma once

#include <string>
#include <vector>

namespace esp::dash {

// A folder with a run.toml or a metrics.jsonl, or one that may not be looked into: its row says so.
bool is_run_folder(const std::string& path);

struct FoundRun {
  std::string path, name;
};

// The folder itself where it is a run, else the runs at most two levels below it, named by their path from `folder`.
// Symbolic links are not followed below it; a folder that may not be looked into is listed.
std::vector<FoundRun> find_runs(const std::string& folder);

// The runs of all folders, each once, in the order given. A name is the last part of the path, with as many parts
// before it as it takes to differ from the others: a/base and b/base. A folder without a run is an IoError, or a line
// of `refused` where that is given.
std::vector<FoundRun> find_all_runs(const std::vector<std::string>& folders,
                                    std::vector<std::string>* refused = nullptr);

}  // namespace esp::dash
