#include "esp/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "esp/base/clock.h"
#include "esp/base/error.h"
#include "esp/ckpt/steps.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = "/run.lock";
// If a launcher was killed, its ranks end within this time.
constexpr Duration kEnding = std::chrono::seconds(3);
constexpr size_t kHolderBytes = 300;

// The files of one run. Checkpoints, caches and flight records are not listed, because a later run reuses them.
constexpr const char* kRunFiles[] = {"trace.json", "report.html",   "events.jsonl", "ranks",
                                     "events",     "metrics.jsonl", "summary.json", "run.toml"};

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

// True if the path still leads to this open file. The owner of a lock removes the file before it unlocks it, so a lock
// on a removed file does not count.
bool still_named(const obs::File& file) {
  struct stat ours {
  }, named{};
  return fstat(file.fd(), &ours) == 0 && stat(file.path().c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

// Writes into the lock file which process owns it, for the error message of another run. A full disk is ignored here
// and reported elsewhere.
void write_holder(obs::File& file) {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  try {
    file.truncate(0);
    file.write_all(fmt::format("process {} on {}", getpid(), host));
  } catch (const IoError&) {
  }
}

void move(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw IoError(fmt::format("{}: cannot move to {}: {}", from, to, error.message()));
}

// The first name of the form before-N that does not exist in any of the folders.
std::string free_name(const std::vector<std::string>& folders) {
  for (int number = 1;; ++number) {
    const std::string name = fmt::format("/before-{}", number);
    if (std::none_of(folders.begin(), folders.end(), [&](const auto& folder) { return is_there(folder + name); }))
      return name;
  }
}

std::vector<std::string> later_than(const std::string& checkpoints, int64_t step) {
  std::vector<std::string> paths;
  for (const auto& [number, path] : ckpt::list_steps(checkpoints))
    if (number > step) paths.push_back(path);
  const std::string apart = fmt::format("{}/{}", checkpoints, kDivergedFolder);
  if (step < 0 && is_there(apart)) paths.push_back(apart);
  return paths;
}

}  // namespace

RunLock::RunLock(const std::string& folder, const Log& log) {
  const Deadline ending = Deadline::after(kEnding);
  while (true) {
    file_ = std::make_unique<obs::File>(folder + kLockName, O_RDWR | O_CREAT | O_NOFOLLOW);
    if (flock(file_->fd(), LOCK_EX | LOCK_NB) == 0) {
      if (!still_named(*file_)) continue;
      write_holder(*file_);
      return;
    }
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      log.warn("{}: cannot be locked ({}). Make sure that no other run uses the folder", file_->path(),
               errno_text(errno));
      unlink(file_->path().c_str());
      file_ = nullptr;
      return;
    }
    if (ending.passed()) {
      const std::string holder = file_->read(0, kHolderBytes);
      file_ = nullptr;
      throw UsageError(
          fmt::format("run folder {}: another run uses it{}. Wait until that run ends, or set another "
                      "folder with --run-dir or run.dir",
                      folder, holder.empty() ? "" : fmt::format(" ({})", holder)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

RunLock::~RunLock() {
  if (file_ && still_named(*file_)) unlink(file_->path().c_str());
}

FolderHandle::FolderHandle(const std::string& path) : folder_(path, O_RDONLY | O_DIRECTORY) {}

void FolderHandle::check() const {
  if (still_named(folder_)) return;
  throw obs::FileChanged(
      fmt::format("run folder {}: it was deleted or moved during the run{}. The run ends and writes nothing more",
                  folder_.path(), is_there(folder_.path()) ? ", and another folder has its name now" : ""));
}

void check_folder_unlocked(const std::string& folder, const Log& log) {
  if (is_there(folder + kLockName)) RunLock(folder, log);
}

std::string archive_run(const std::string& folder, const std::string& checkpoints, int64_t step) {
  const bool all = step < 0;
  std::vector<std::string> files;
  for (const char* name : kRunFiles)
    if (is_there(fmt::format("{}/{}", folder, name))) files.push_back(name);
  const std::vector<std::string> later = later_than(checkpoints, step);
  if (later.empty() && (!all || files.empty())) return {};

  std::error_code error;
  const bool own = checkpoints == folder + "/checkpoints" && !fs::is_symlink(checkpoints, error);
  const std::string name = free_name({folder, checkpoints}), before = folder + name;
  ckpt::make_folders(before, 0700);
  for (const std::string& file : files) {
    const std::string from = fmt::format("{}/{}", folder, file), to = fmt::format("{}/{}", before, file);
    if (all || file == "summary.json") {
      move(from, to);
    } else if (file == "metrics.jsonl" || file == "run.toml") {
      // Copied, because the new run continues these two files.
      fs::copy_file(from, to, error);
      if (error) throw IoError(fmt::format("cannot copy {} to {}: {}", from, to, error.message()));
    }
  }
  // Checkpoints are moved last: if this is interrupted, a run can still resume from them. Checkpoints outside the run
  // folder stay on their disk.
  if (later.empty()) return before;
  const std::string there = own ? before + "/checkpoints" : checkpoints + name;
  if (all && own) {
    move(checkpoints, there);
    return before;
  }
  ckpt::make_folders(there);
  for (const std::string& path : later) move(path, fmt::format("{}/{}", there, fs::path(path).filename().string()));
  ckpt::sync_folder(checkpoints);
  return before;
}

void remove_empty_run(const std::string& folder) {
  for (const char* name : kRunFiles)
    if (is_there(fmt::format("{}/{}", folder, name))) return;
  std::error_code error;
  if (is_there(folder + "/checkpoints") || !fs::is_directory(folder, error)) return;
  try {
    const RunLock held(folder, Log(LogLevel::off, -1));
    fs::remove_all(folder + "/flight", error);
  } catch (const Error&) {
    return;  // another run owns the folder now
  }
  fs::remove(folder, error);  // fails if the folder is not empty
}

}  // namespace esp::train
