#include "esp/dash/find_runs.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <unordered_set>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::dash {
namespace {

namespace fs = std::filesystem;

// True if the folder has an entry of this name, of any type, or if the folder cannot be searched.
bool may_have(const std::string& path) {
  struct stat now {};
  return ::lstat(path.c_str(), &now) == 0 || errno == EACCES;
}

// The last `num_parts` parts of a path.
std::string tail_of(const fs::path& path, size_t num_parts) {
  fs::path tail;
  size_t before = static_cast<size_t>(std::distance(path.begin(), path.end()));
  before -= std::min(before, num_parts);
  for (const fs::path& part : path) {
    if (before > 0)
      --before;
    else
      tail /= part;
  }
  return tail.empty() ? "/" : tail.string();
}

// An error in one folder does not affect the others.
void add_runs(const fs::path& root, const fs::path& folder, int num_levels, std::vector<FoundRun>& found) {
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code ignored;
    if (at->is_symlink(ignored) || !at->is_directory(ignored)) continue;
    if (is_run_folder(at->path()))
      found.push_back({at->path(), at->path().lexically_relative(root)});
    else if (num_levels > 1)
      add_runs(root, at->path(), num_levels - 1, found);
  }
}

std::vector<FoundRun> runs_of(const std::string& folder) {
  DIR* const readable = ::opendir(folder.c_str());
  if (!readable) throw IoError(fmt::format("{}: {}", folder, errno_text(errno)));
  ::closedir(readable);
  std::vector<FoundRun> found = find_runs(folder);
  if (found.empty())
    throw IoError(fmt::format(
        "{}: got a folder without a run; expected run.toml or metrics.jsonl in it, or in folders below it", folder));
  return found;
}

}  // namespace

bool is_run_folder(const std::string& path) {
  return may_have(path + "/metrics.jsonl") || may_have(path + "/run.toml");
}

std::vector<FoundRun> find_runs(const std::string& folder) {
  std::error_code error;
  if (is_run_folder(folder)) {
    fs::path path = fs::weakly_canonical(folder, error);
    if (error) path = folder;
    return {{folder, tail_of(path, 1)}};
  }
  std::vector<FoundRun> found;
  add_runs(folder, folder, 2, found);
  std::sort(found.begin(), found.end(), [](const FoundRun& a, const FoundRun& b) { return a.name < b.name; });
  return found;
}

std::vector<FoundRun> find_all_runs(const std::vector<std::string>& folders, std::vector<std::string>* refused) {
  std::vector<FoundRun> all;
  std::vector<fs::path> paths;
  std::unordered_set<std::string> known;
  for (const std::string& folder : folders) {
    try {
      for (const FoundRun& run : runs_of(folder)) {
        fs::path path = fs::weakly_canonical(run.path);
        if (!known.insert(path.string()).second) continue;
        paths.push_back(std::move(path));
        all.push_back(run);
      }
    } catch (const IoError& error) {
      if (!refused) throw;
      refused->emplace_back(error.what());
    }
  }
  std::vector<size_t> num_parts(all.size(), 1);
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::string, std::vector<size_t>> by_name;
    for (size_t i = 0; i < all.size(); ++i) by_name[all[i].name = tail_of(paths[i], num_parts[i])].push_back(i);
    for (const auto& [name, same] : by_name)
      if (same.size() > 1)
        for (const size_t i : same) changed |= ++num_parts[i] > 0;
  }
  return all;
}

}  // namespace esp::dash
