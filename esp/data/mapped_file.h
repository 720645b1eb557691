// A file read through memory. Empty files are legal and map to nothing.
#pragma once

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

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace esp::data
