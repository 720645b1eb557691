// A file of fixed size whose disk space is reserved at creation. If the disk is too small, the error comes at the
// start, with the sizes, and not hours later.
//
// The file is opened with O_DIRECT if the file system supports it. `notes` lists features that are unavailable. Unless
// `keep` is set, the file is unlinked at once, so a crash leaves no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace esp::sync {

inline constexpr uint64_t kBlockBytes = 4096;  // unit of transfers, alignment and checksums, in bytes

struct FileOptions {
  std::string folder = ".";
  std::string io = "auto";  // I/O backend: auto (io_uring if available), uring or threads
  int64_t num_threads = 4;  // number of threads with io = threads
  bool direct = true;       // O_DIRECT: bypasses the page cache
  bool reserve = true;      // reserves the disk space at creation
  bool keep = false;        // keeps the file's name, so the file remains after the run
  int64_t timeout_s = 60;   // maximum wait for the disk
};

class ReservedFile {
 public:
  // Throws IoError if the folder does not exist, or if it has too little free disk space (with the sizes, and the
  // largest size that fits).
  ReservedFile(const FileOptions& options, const std::string& name, uint64_t bytes);
  ~ReservedFile();
  ReservedFile(const ReservedFile&) = delete;
  ReservedFile& operator=(const ReservedFile&) = delete;

  int descriptor() const { return file_; }
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  const std::vector<std::string>& notes() const { return notes_; }

  uint64_t free_bytes() const;  // free bytes of the file system that contains the folder
  // The error text for a full disk: bytes needed, bytes free, and the largest size that fits.
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
