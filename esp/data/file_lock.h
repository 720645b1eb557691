// One process at a time, by a lock on a file that is gone when nobody holds it.
#pragma once

#include <memory>
#include <string>

#include "esp/base/clock.h"
#include "esp/obs/file.h"

namespace esp::data {

class FileLock {
 public:
  // Waits for the holder until the deadline, then IoError.
  FileLock(const std::string& path, Deadline deadline);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  std::unique_ptr<obs::File> file_;
};

}  // namespace esp::data
