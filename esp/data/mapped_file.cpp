#include "esp/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::data {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  obs::File file(path, O_RDONLY);
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) file.fail("cannot stat");
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("{} is not a regular file and cannot be mapped", path));
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ == 0) return;
  void* address = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (address == MAP_FAILED) file.fail("cannot map");
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace esp::data
