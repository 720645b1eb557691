// A memory-mapped file. An empty file is legal and maps to nothing.
//
// A reader must call `check` after it has read bytes and before it uses them. If the file is truncated meanwhile, the
// bytes beyond its new end read as zeros (a SIGBUS handler, installed by the first mapping, maps zero pages) and
// `check` throws. A file of at most kMaxHashedBytes is hashed when it is opened, so that `check` can tell a new
// modification time from new content. Thread-safe for readers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace esp::data {

class MappedFile {
 public:
  static constexpr uint64_t kMaxHashedBytes = uint64_t{16} << 20;

  explicit MappedFile(const std::string& path);  // throws IoError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Throws obs::FileChanged if the size or the content of the file has changed since it was opened, or if a file larger
  // than kMaxHashedBytes has a new modification time. A removed or replaced file stays mapped with its old content.
  void check() const;

  struct Guard;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  uint64_t hash_ = 0;                            // of the content; set if size_ <= kMaxHashedBytes
  mutable std::atomic<int64_t> changed_ns_ = 0;  // last accepted modification time
  Guard* guard_ = nullptr;
};

}  // namespace esp::data
