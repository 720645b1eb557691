// A file of fixed size whose disk space is reserved at creation: a disk that is too small is an error at the start,
// with sizes, and not hours later.
//
// Opened with O_DIRECT where the file system supports it; unavailable features are listed in `notes`. The file is
// unlinked at once unless `keep` is set, so a crash leaves no file. One owner.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::sync {

inline constexpr uint64_t kBlockBytes = 4096;  // the unit of transfer, alignment and checksums

struct FileOptions {
  std::string folder = ".";
  std::string io = "auto";  // auto (io_uring if available), uring, threads
  int64_t num_threads = 4;  // of io = threads
  bool direct = true;       // bypasses the page cache
  bool reserve = true;      // reserves disk space at the start
  bool keep = false;        // leave the file in the folder
  int64_t timeout_s = 60;   // longest wait for the disk
};

class ReservedFile {
 public:
  // IoError: no such folder, or too little free disk space (with the sizes, and the size that would fit).
  ReservedFile(const FileOptions& options, const std::string& name, uint64_t bytes);
  ~ReservedFile();
  ReservedFile(const ReservedFile&) = delete;
  ReservedFile& operator=(const ReservedFile&) = delete;

  int descriptor() const { return file_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  const std::vector<std::string>& notes() const { return notes_; }

  uint64_t free_bytes() const;  // of its folder's file system
  // Error text for a full disk: bytes needed, bytes free, and the size that would fit.
  std::string shortage() const;

 private:
  void reserve();
  bool try_direct();

  const FileOptions options_;
  const uint64_t bytes_;  // multiple of kBlockBytes
  std::string path_;
  int file_ = -1;
  bool direct_ = false;
  std::vector<std::string> notes_;
};

}  // namespace esp::sync
