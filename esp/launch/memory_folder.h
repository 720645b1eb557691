// A folder in this host's memory for what must outlive a rank but not the job: local snapshots.
//
// Made with mode 0700 and a name nobody can guess, removed with its owner. An owner that was killed leaves it behind;
// the next one made on the host finds it unlocked and removes it. One thread.
#pragma once

#include <string>

#include "esp/net/socket.h"

namespace esp::launch {

class MemoryFolder {
 public:
  explicit MemoryFolder(const std::string& under = "/dev/shm");  // IoError
  ~MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  net::Socket lock_;  // of the folder itself, held as long as we live
};

// Removes those whose owner is gone; how many.
int sweep_memory_folders(const std::string& under);

}  // namespace esp::launch
