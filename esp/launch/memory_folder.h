// MemoryFolder: a folder in this host's memory (tmpfs). It holds data that must outlive a rank but not the job:
// in-memory snapshots.
//
// The folder has mode 0700 and a random name. The destructor removes it. If the owner was killed, the folder remains.
// The next MemoryFolder on the host finds it unlocked and removes it. One thread.
#pragma once

#include <string>

#include "esp/net/socket.h"

namespace esp::launch {

class MemoryFolder {
 public:
  explicit MemoryFolder(const std::string& under = "/dev/shm");  // throws IoError
  ~MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  net::Socket lock_;  // lock on the folder itself, held for the lifetime of this object
};

// Removes folders whose owner is gone; returns the number of removed folders.
int sweep_memory_folders(const std::string& under);

}  // namespace esp::launch
