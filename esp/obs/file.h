// File: an owned descriptor; reads and writes throw with path and reason.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/error.h"

namespace esp::obs {

// A file or folder is not the one that was opened: another content, another folder of its name, or none.
class FileChanged : public IoError {
 public:
  using IoError::IoError;
};

class File {
 public:
  // Flags as for open(2), plus O_CLOEXEC. Throws IoError.
  File(const std::string& path, int flags, mode_t mode = 0644);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  uint64_t size() const;

  // Writes all of `text` at the file position (at the end with O_APPEND). Throws IoError; a part may have been written.
  void write_all(std::string_view text);
  // Reads up to `bytes` from `offset`; fewer only at the end of the file.
  std::string read(uint64_t offset, size_t bytes) const;
  void truncate(uint64_t bytes);
  void sync();

  [[noreturn]] void fail(std::string_view what) const;  // IoError with path and errno

 private:
  std::string path_;
  int fd_;
};

std::string read_whole_file(const std::string& path, size_t max_bytes);
// Writes a temporary file, then renames it: readers see the old file or the new one. `synced`: the content is on disk
// before the rename.
void write_whole_file(const std::string& path, std::string_view text, bool synced = false);

}  // namespace esp::obs
