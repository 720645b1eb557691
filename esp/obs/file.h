// Files of this room: a descriptor that closes itself, and reads and writes that say which path failed and why.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace esp::obs {

class File {
 public:
  // Flags as for open(2); O_CLOEXEC is added. Throws IoError.
  File(const std::string& path, int flags, mode_t mode = 0644);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  uint64_t size() const;

  // All of `text`, at the file's position (its end under O_APPEND). Throws IoError; part may have been written.
  void write_all(std::string_view text);
  // Up to `bytes` from `offset`; fewer only at the end of the file.
  std::string read(uint64_t offset, size_t bytes) const;
  void truncate(uint64_t bytes);
  void sync();

  [[noreturn]] void fail(std::string_view what) const;  // IoError with path and errno

 private:
  std::string path_;
  int fd_;
};

std::string read_whole_file(const std::string& path, size_t max_bytes);
// Beside the path first, then renamed over it: a reader sees the old file or the new one. `synced`: what it holds is on
// disk before anybody sees it.
void write_whole_file(const std::string& path, std::string_view text, bool synced = false);

}  // namespace esp::obs
