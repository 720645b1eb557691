// One file of a fixed size in a folder, its room on the disk reserved before anything is computed: a disk that is too
// small is found out at the start, with numbers, and not after a night's training.
//
// Opened past the page cache (O_DIRECT) where the file system allows it; what could not be had is told in `notes`. The
// name is taken away at once unless it is to be kept, so that a crash leaves nothing behind. Owned by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::sync {

inline constexpr uint64_t kBlockBytes = 4096;  // the unit of transfer, alignment and checksums

struct FileOptions {
  std::string folder = ".";
  std::string io = "auto";  // auto (io_uring where there is one), uring, threads
  int64_t num_threads = 4;  // of io = threads
  bool direct = true;       // past the page cache
  bool reserve = true;      // the disk's room at the start
  bool keep = false;        // leave the file in the folder
  int64_t timeout_s = 60;   // longest wait for the disk's answer
};

class ReservedFile {
 public:
  // IoError: no such folder, or fewer free bytes than wanted (it says how many, and what would fit).
  ReservedFile(const FileOptions& options, const std::string& name, uint64_t bytes);
  ~ReservedFile();
  ReservedFile(const ReservedFile&) = delete;
  ReservedFile& operator=(const ReservedFile&) = delete;

  int descriptor() const { return file_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  const std::vector<std::string>& notes() const { return notes_; }

  uint64_t free_bytes() const;  // in its folder, now
  // "… bytes wanted, … free in …; at most … would fit": for a disk that is full.
  std::string shortage() const;

 private:
  void reserve();
  bool try_direct();

  const FileOptions options_;
  const uint64_t bytes_;  // whole blocks
  std::string path_;
  int file_ = -1;
  bool direct_ = false;
  std::vector<std::string> notes_;
};

}  // namespace esp::sync
