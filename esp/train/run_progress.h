// RunProgress: the highest step that a job has reached, in a file in the launcher's snapshot folder
// (RecoveryOptions::snapshot_folder). The launcher reads it to decide whether restarts make progress.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "esp/obs/file.h"

namespace esp::train {

// Written by rank 0. One write costs one system call per step. It never throws, not even on a full disk, because the
// run does not depend on it.
class RunProgress {
 public:
  explicit RunProgress(const std::string& folder);  // with an empty `folder` nothing is written; IoError
  void reached(int64_t step);

 private:
  std::unique_ptr<obs::File> file_;
  int64_t highest_ = -1;
};

int64_t highest_step(const std::string& folder);  // -1 if no step was made yet

}  // namespace esp::train
