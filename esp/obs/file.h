// File: owns a file descriptor. A failed read or write throws an IoError with the path and the reason.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "esp/base/error.h"

namespace esp::obs {

// Thrown if a file or folder is no longer the one that was opened: its content differs, another folder has its name, or
// it was deleted.
class FileChanged : public IoError {
 public:
  using IoError::IoError;
};

class File {
 public:
  // Flags as for open(2), plus O_CLOEXEC. Throws IoError.
  File(const std::string& path, int flags, mode_t mode = 0644);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  uint64_t size() const;

  // Writes all of `text` at the file position (at the end with O_APPEND). Throws IoError; part of `text` may then have
  // been written.
  void write_all(std::string_view text);
  // Reads up to `bytes` from `offset`; fewer only at the end of the file.
  std::string read(uint64_t offset, size_t bytes) const;
  size_t read(uint64_t offset, std::span<std::byte> to) const;  // returns the number of bytes read
  void truncate(uint64_t bytes);
  void sync();

  [[noreturn]] void fail(std::string_view what) const;  // throws an IoError with `what`, the path and errno

 private:
  std::string path_;
  int fd_;
};

// Opens a regular file for reading. Throws IoError for a pipe (opening it could block), a device (it may never end), a
// socket or a folder.
File open_input_file(const std::string& path);
// As open_input_file. Throws IoError also for a file of more than `max_bytes` and for a Git LFS pointer.
std::string read_whole_file(const std::string& path, size_t max_bytes);
// True if `text` begins like the small text file that Git LFS leaves in place of a file that was not downloaded.
bool is_git_lfs_pointer(std::string_view text);
// Writes a temporary file, then renames it, so that a reader sees either the old or the new content. `synced`: the
// content is on disk before the rename.
void write_whole_file(const std::string& path, std::string_view text, bool synced = false);

}  // namespace esp::obs
