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
#include "esp/ckpt/regular_file.h"
#include "esp/obs/file.h"

namespace esp::ckpt {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "step-";
// prefix of a complete checkpoint while a new checkpoint of the same step replaces it
constexpr std::string_view kAsidePrefix = ".aside-";

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
    const Manifest manifest = parse_manifest(read_regular_file(manifest_path, kMaxJsonBytes), manifest_path);
    for (const auto* files : {&manifest.files, &manifest.added})
      for (const auto& [name, record] : *files)
        if (regular_file_size(path + "/" + name) != record.bytes) return false;
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
    throw IoError(fmt::format("cannot rename {} to {}: {}", from, to, errno_text(errno)));
}

// Replaces a checkpoint atomically where the file system supports it (RENAME_EXCHANGE): at every moment, also after a
// power failure, either the old or the new checkpoint exists.
void replace_checkpoint(const std::string& dir, const std::string& folder, const std::string& path) {
  if (renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    try {
      sync_folder(dir);
    } catch (const IoError&) {
      renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE);
      throw;
    }
    std::error_code error;
    fs::remove_all(folder, error);  // the old checkpoint
    return;
  }
  // Without RENAME_EXCHANGE, the old checkpoint is first renamed to .aside-, where list_steps still finds it. If the
  // rename of the new checkpoint fails, the old name is restored.
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
    // Another rank may create the same folder concurrently.
    if (mkdir(made->c_str(), *made == missing.front() ? mode : 0777) != 0 && errno != EEXIST)
      throw IoError(fmt::format("cannot create folder {}: {}", made->string(), errno_text(errno)));
    sync_folder(made->parent_path().string());
  }
  if (!fs::is_directory(dir, error)) throw IoError(fmt::format("{}: got a file; expected a folder", dir));
  if (missing.empty()) return;
  // Another process may have created the existing parent folders a moment ago without syncing them, so they are synced
  // too. A parent folder that this process may not open was not created by this job, so the loop ends there.
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

std::vector<std::pair<int64_t, std::string>> list_steps(const std::string& dir, std::vector<std::string>* ignored) {
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
    // Removing old checkpoints must not follow a link out of this folder.
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
  for (const auto& [step, path] : list_steps(dir)) {
    if (path != written && complete(path) && ++kept > keep) {
      std::error_code error;
      // The manifest is removed first: without it the checkpoint counts as incomplete.
      fs::remove(path + "/" + kManifestName, error);
      fs::remove_all(path, error);
    }
  }
}

void prepare_folder(const std::string& dir) {
  try {
    make_folders(dir);
  } catch (const IoError& error) {
    throw IoError(fmt::format("checkpoint folder {}: {}. Set checkpoint.dir to another folder", dir, error.what()));
  }
  remove_beginning_with(dir, kPartialPrefix);
  for (const auto& [step, path] : list_steps(dir))
    if (fs::path(path).filename().string().starts_with(kAsidePrefix))
      rename_or_throw(path, dir + "/" + step_name(step));
  remove_beginning_with(dir, kAsidePrefix);
}

void remove_failed(const std::string& dir) {
  remove_beginning_with(dir, kFailedPrefix);
}

void commit_folder(const std::string& dir, const std::string& folder, const std::string& path) {
  sync_folder(folder);
  if (!is_there(path)) {
    rename_or_throw(folder, path);
    sync_folder(dir);
    return;
  }
  // A checkpoint of this step exists: the run was resumed from an earlier step. The new folder first gets a name that
  // other ranks do not know, so they can no longer abort it.
  const std::string ready = fmt::format("{}/{}ready-{}", dir, kPartialPrefix, fs::path(path).filename().string());
  std::error_code error;
  fs::remove_all(ready, error);
  rename_or_throw(folder, ready);
  try {
    replace_checkpoint(dir, ready, path);
  } catch (const IoError&) {
    std::rename(ready.c_str(), folder.c_str());
    throw;
  }
}

void sync_folder(const std::string& path) {
  obs::File(path, O_RDONLY | O_DIRECTORY).sync();
}

std::optional<OpenedCheckpoint> newest_valid(const std::string& dir, std::vector<std::string>* skipped) {
  std::vector<std::string> damaged;
  for (const auto& [step, path] : list_steps(dir, skipped)) {
    std::string why = "incomplete: it has no manifest.json";
    if (is_there(path + "/" + kManifestName)) {
      try {
        return OpenedCheckpoint{path, open_checkpoint(path)};
      } catch (const IoError& error) {
        why = error.what();
        damaged.push_back(why);
      }
    }
    if (skipped) skipped->push_back(fmt::format("{} ({})", path, why));
  }
  if (damaged.empty()) return std::nullopt;
  throw IoError(
      fmt::format("no checkpoint under {} can be used: {}. Repair one, or start from scratch with --resume none", dir,
                  fmt::join(damaged, "; ")));
}

std::optional<std::string> newest_complete(const std::string& dir, std::vector<std::string>* skipped) {
  for (const auto& [step, path] : list_steps(dir, skipped)) {
    if (complete(path)) return path;
    if (skipped) skipped->push_back(path);
  }
  return std::nullopt;
}

}  // namespace esp::ckpt
