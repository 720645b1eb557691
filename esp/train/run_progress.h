// The highest step a job has reached, in a file of the folder that its launcher lends (Recovery::snapshots): by it the
// launcher knows whether restarts help.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "esp/obs/file.h"

namespace esp::train {

// Written by the first rank. Costs one system call a step, and never throws for a full disk: it only informs.
class RunProgress {
 public:
  explicit RunProgress(const std::string& folder);  // empty: no launcher reads it. IoError
  void reached(int64_t step);

 private:
  std::unique_ptr<obs::File> file_;
  int64_t highest_ = -1;
};

int64_t highest_step(const std::string& folder);  // -1 before the first

}  // namespace esp::train
