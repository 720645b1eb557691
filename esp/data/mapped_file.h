// A file read through memory. Empty files are legal and map to nothing.
//
// A reader calls `check` after it has read bytes, and uses them only then: where the file is cut short meanwhile, the
// bytes beyond its new end read as zeros (by a SIGBUS handler, which the first mapping installs), and `check` throws.
// Reads may come from any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace esp::data {

class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // IoError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // obs::FileChanged where the file has another size than when it was opened. False where it was written since, or only
  // touched: the caller compares the content. A file that was removed or replaced stays mapped, and is what it was.
  bool check() const;
  void accept_time() const;  // its content was compared and is the same: `check` returns true again

  struct Guard;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t device_ = 0, inode_ = 0;
  mutable std::atomic<int64_t> changed_ns_ = 0;  // when it was written last, as far as it is accepted
  Guard* guard_ = nullptr;
};

}  // namespace esp::data
