// Mutual exclusion between processes by flock() on a file. The file is removed on release.
#pragma once

#include <memory>
#include <string>

#include "esp/base/clock.h"
#include "esp/obs/file.h"

namespace esp::data {

class FileLock {
 public:
  // Waits until the lock is free; throws IoError at the deadline.
  FileLock(const std::string& path, Deadline deadline);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::unique_ptr<obs::File> file_;
};

}  // namespace esp::data
