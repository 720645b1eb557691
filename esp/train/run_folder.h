// The run folder as one run's own: held by one run at a time, cleared of an earlier run before another begins in it,
// and taken back when none began.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "esp/base/log.h"
#include "esp/obs/file.h"

namespace esp::train {

// In the folder of checkpoints: the last state of a run that failed (not finite, or most steps skipped). Only --resume
// PATH reads it.
inline constexpr const char* kDivergedFolder = "diverged";

// A lock that the kernel gives back when its process ends, on a file that is gone when nobody holds it. Of several
// ranks the first has it. Processes that it starts do not inherit it.
class RunLock {
 public:
  // UsageError where another run has it, and keeps it for longer than one whose launcher was killed lives. Where the
  // file system knows no locks there is a warning, and nothing is held.
  RunLock(const std::string& folder, const Log& log);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  std::unique_ptr<obs::File> file_;
};

// A folder by its inode: another one may take its name while it is in use. Every rank has one.
class FolderHandle {
 public:
  explicit FolderHandle(const std::string& path);  // IoError
  // obs::FileChanged where the path leads to another folder by now, or to none. For before each write.
  void check() const;

 private:
  obs::File folder_;
};

// UsageError while another run has the folder, which need not be there.
void check_free(const std::string& folder, const Log& log);

// A run that does not go on from the newest checkpoint of its folder: what others are later than `step` moves to
// before-N in the run folder, a run folder itself. -1: all of the former run, its metrics and reports too. Returns
// where it went; empty when there was nothing. IoError.
std::string set_aside(const std::string& folder, const std::string& checkpoints, int64_t step);

// After a start that failed: the folder goes, unless a run began in it, or there is more than such a start leaves.
void remove_unbegun(const std::string& folder);

}  // namespace esp::train
