#include "esp/ckpt/steps.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/checkpoint.h"
#include "esp/ckpt/manifest.h"
#include "esp/ckpt/own_file.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kAsidePrefix = ".aside-";  // a whole checkpoint that another of its step is to replace

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 && step <= kMaxStep ? std::optional(step) : std::nullopt;
}

bool is_numbered(const std::string& name) {
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

bool complete(const std::string& path) {
  try {
    const std::string manifest_path = path + "/" + kManifestName;
    const Manifest manifest = parse_manifest(read_own_file(manifest_path, kMaxJsonBytes), manifest_path);
    for (const auto* files : {&manifest.files, &manifest.added})
      for (const auto& [name, record] : *files)
        if (own_file_size(path + "/" + name) != record.bytes) return false;
    return true;
  } catch (const IoError&) {
    return false;
  }
}

bool is_there(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

void rename_or_throw(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw IoError(fmt::format("{} cannot become {}: {}", from, to, errno_text(errno)));
}

// The place of a checkpoint taken by another in one step where the file system has such a step: no moment, and no cut
// of power, finds neither.
void take_place(const std::string& dir, const std::string& folder, const std::string& path) {
  if (renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    try {
      sync_folder(dir);
    } catch (const IoError&) {
      renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE);
      throw;
    }
    std::error_code error;
    fs::remove_all(folder, error);  // the old one
    return;
  }
  // Elsewhere the old one steps aside, where it is still found, and comes back should the new one fail.
  const std::string aside = fmt::format("{}/{}{}", dir, kAsidePrefix, fs::path(path).filename().string());
  std::error_code error;
  fs::remove_all(aside, error);
  rename_or_throw(path, aside);
  try {
    sync_folder(dir);
    rename_or_throw(folder, path);
  } catch (const IoError&) {
    std::rename(aside.c_str(), path.c_str());
    throw;
  }
  sync_folder(dir);
  fs::remove_all(aside, error);
}

void remove_beginning_with(const std::string& dir, std::string_view prefix) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error))
    if (entry.path().filename().string().starts_with(prefix)) fs::remove_all(entry.path(), error);
}

}  // namespace

void make_folders(const std::string& dir, mode_t mode) {
  std::vector<fs::path> missing;
  fs::path at = fs::absolute(dir);
  if (!at.has_filename()) at = at.parent_path();
  std::error_code error;
  for (; !fs::exists(at, error) && at.has_relative_path(); at = at.parent_path()) missing.push_back(at);
  for (auto made = missing.rbegin(); made != missing.rend(); ++made) {
    // Another rank may be doing the same.
    if (mkdir(made->c_str(), *made == missing.front() ? mode : 0777) != 0 && errno != EEXIST)
      throw IoError(fmt::format("cannot make folder {}: {}", made->string(), errno_text(errno)));
    sync_folder(made->parent_path().string());
  }
  if (!fs::is_directory(dir, error)) throw IoError(fmt::format("{} is no folder", dir));
  if (missing.empty()) return;
  // Others may have made those above just now and not have cared. What cannot be opened is older than we are.
  for (; at.has_relative_path(); at = at.parent_path()) {
    try {
      sync_folder(at.parent_path().string());
    } catch (const IoError&) {
      return;
    }
  }
}

std::string step_name(int64_t step) {
  return fmt::format("{}{}", kPrefix, step);
}

std::vector<std::pair<int64_t, std::string>> steps_under(const std::string& dir, std::vector<std::string>* ignored) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    std::string name = entry.path().filename().string();
    const bool aside = name.starts_with(kAsidePrefix);
    if (aside) name = name.substr(kAsidePrefix.size());
    const auto step = step_of(name);
    if (ignored && !step && !aside && is_numbered(name))
      ignored->push_back(
          fmt::format("{} (got a step beyond {}; expected step-N of a run)", entry.path().string(), kMaxStep));
    if (!step || (aside && is_there(dir + "/" + name))) continue;
    // Removal of old checkpoints must not follow a link out of this folder.
    if (entry.is_symlink(error)) {
      if (ignored)
        ignored->push_back(
            fmt::format("{} (got a symbolic link; expected a folder. Copy the checkpoint here, or name "
                        "it: --resume PATH)",
                        entry.path().string()));
      continue;
    }
    found.emplace_back(*step, entry.path().string());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void remove_old(const std::string& dir, int keep, const std::string& written) {
  if (keep == 0) return;
  int kept = 1;
  for (const auto& [step, path] : steps_under(dir)) {
    if (path != written && complete(path) && ++kept > keep) {
      std::error_code error;
      fs::remove(path + "/" + kManifestName, error);  // first: from now on it is incomplete
      fs::remove_all(path, error);
    }
  }
}

void clear_for_writing(const std::string& dir) {
  try {
    make_folders(dir);
  } catch (const IoError& error) {
    throw IoError(fmt::format("checkpoint folder {}: {}; checkpoint.dir names another", dir, error.what()));
  }
  remove_beginning_with(dir, kPartialPrefix);
  for (const auto& [step, path] : steps_under(dir))
    if (fs::path(path).filename().string().starts_with(kAsidePrefix))
      rename_or_throw(path, dir + "/" + step_name(step));
  remove_beginning_with(dir, kAsidePrefix);
}

void remove_failed(const std::string& dir) {
  remove_beginning_with(dir, kFailedPrefix);
}

void put_in_place(const std::string& dir, const std::string& folder, const std::string& path) {
  sync_folder(folder);
  if (!is_there(path)) {
    rename_or_throw(folder, path);
    sync_folder(dir);
    return;
  }
  // The same step once more, after a resume. First it leaves the name that other ranks may still give up.
  const std::string ready = fmt::format("{}/{}ready-{}", dir, kPartialPrefix, fs::path(path).filename().string());
  std::error_code error;
  fs::remove_all(ready, error);
  rename_or_throw(folder, ready);
  try {
    take_place(dir, ready, path);
  } catch (const IoError&) {
    std::rename(ready.c_str(), folder.c_str());
    throw;
  }
}

void sync_folder(const std::string& path) {
  obs::File(path, O_RDONLY | O_DIRECTORY).sync();
}

std::optional<FoundCheckpoint> newest_sound(const std::string& dir, std::vector<std::string>* skipped) {
  std::vector<std::string> damaged;
  for (const auto& [step, path] : steps_under(dir, skipped)) {
    std::string why = "incomplete: it has no manifest.json";
    if (is_there(path + "/" + kManifestName)) {
      try {
        return FoundCheckpoint{path, open_checkpoint(path)};
      } catch (const IoError& error) {
        why = error.what();
        damaged.push_back(why);
      }
    }
    if (skipped) skipped->push_back(fmt::format("{} ({})", path, why));
  }
  if (damaged.empty()) return std::nullopt;
  throw IoError(fmt::format("no checkpoint under {} can be used: {}; mend one, or begin anew with --resume none", dir,
                            fmt::join(damaged, "; ")));
}

std::optional<std::string> newest_complete(const std::string& dir, std::vector<std::string>* skipped) {
  for (const auto& [step, path] : steps_under(dir, skipped)) {
    if (complete(path)) return path;
    if (skipped) skipped->push_back(path);
  }
  return std::nullopt;
}

}  // namespace esp::ckpt
