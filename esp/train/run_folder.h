// Ownership of a run folder: only one run uses it at a time. If another run starts in the folder, the earlier run is
// archived first. If a run fails before it has written anything, its folder is removed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "esp/base/log.h"
#include "esp/obs/file.h"

namespace esp::train {

// Subfolder of the checkpoints for the last state of a failed run (values not finite, or most steps skipped). A run
// reads it only with --resume PATH.
inline constexpr const char* kDivergedFolder = "diverged";

// A file lock, held by rank 0. The operating system releases it when the process ends. The destructor also removes the
// file. Child processes do not inherit the lock.
class RunLock {
 public:
  // UsageError if another run keeps the lock for longer than kEnding; the ranks of a killed launcher end within this
  // time. If the file system has no locks, warns and holds no lock.
  RunLock(const std::string& folder, const Log& log);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  std::unique_ptr<obs::File> file_;
};

// The run folder, identified by its inode, because during the run another folder may get its name. Every rank has one.
class FolderHandle {
 public:
  explicit FolderHandle(const std::string& path);  // throws IoError
  // Throws obs::FileChanged if the path now leads to another folder or does not exist. Call it before each write.
  void check() const;

 private:
  obs::File folder_;
};

// UsageError if another run uses the folder. The folder need not exist.
void check_folder_unlocked(const std::string& folder, const Log& log);

// Call it if a run does not continue from the newest checkpoint of its folder. Moves the checkpoints after `step` into
// a subfolder before-N, which has the form of a run folder. With step = -1, moves the whole previous run, with metrics
// and reports. Returns the path of before-N; empty if there was nothing to move. IoError.
std::string archive_run(const std::string& folder, const std::string& checkpoints, int64_t step);

// After a failed start, removes the folder unless it contains a run or other files.
void remove_empty_run(const std::string& folder);

}  // namespace esp::train
