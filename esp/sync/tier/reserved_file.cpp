#include "esp/sync/tier/reserved_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::sync {

ReservedFile::ReservedFile(const FileOptions& options, const std::string& name, uint64_t bytes)
    : options_(options), bytes_((bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(options.folder, ignored))
    throw IoError(fmt::format(
        "{}: folder does not exist; the file tier needs {} bytes. Create it, or set another folder on a fast disk.",
        options.folder, bytes_));
  path_ = fmt::format("{}/espalier-{}-XXXXXX", options.folder, name);
  if (free_bytes() < bytes_) throw IoError(shortage());
  file_ = ::mkostemp(path_.data(), O_CLOEXEC);
  if (file_ < 0) throw IoError(fmt::format("{}: cannot create the file: {}", path_, errno_text(errno)));
  try {
    reserve();
    if (options.direct && !try_direct())
      notes_.push_back(fmt::format("{}: the file system does not support direct I/O; using the page cache", path_));
  } catch (...) {
    ::unlink(path_.c_str());
    ::close(file_);
    throw;
  }
  if (!options.keep) ::unlink(path_.c_str());
}

ReservedFile::~ReservedFile() {
  ::close(file_);
}

void ReservedFile::reserve() {
  if (options_.reserve) {
    if (::fallocate(file_, 0, 0, static_cast<off_t>(bytes_)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)
      throw IoError(fmt::format("{} ({})", shortage(), errno_text(errno)));
    if (errno != EOPNOTSUPP && errno != ENOSYS)
      throw IoError(fmt::format("{}: cannot reserve {} bytes: {}", path_, bytes_, errno_text(errno)));
    notes_.push_back(
        fmt::format("{}: the file system cannot reserve space; a full disk will be detected only on write", path_));
  }
  if (::ftruncate(file_, static_cast<off_t>(bytes_)) != 0)
    throw IoError(fmt::format("{}: cannot set the file size to {} bytes: {}", path_, bytes_, errno_text(errno)));
}

// Reads once, because some file systems accept O_DIRECT and then reject the first read.
bool ReservedFile::try_direct() {
  const int flags = ::fcntl(file_, F_GETFL);
  if (flags < 0 || ::fcntl(file_, F_SETFL, flags | O_DIRECT) != 0) return false;
  alignas(kBlockBytes) std::byte block[kBlockBytes];
  direct_ = ::pread(file_, block, sizeof block, 0) >= 0;
  if (!direct_) ::fcntl(file_, F_SETFL, flags);
  return direct_;
}

uint64_t ReservedFile::free_bytes() const {
  struct statvfs disk {};
  if (::statvfs(options_.folder.c_str(), &disk) != 0)
    throw IoError(fmt::format("{}: cannot read the free disk space: {}", options_.folder, errno_text(errno)));
  if (disk.f_blocks == 0) return UINT64_MAX;  // this file system does not report its size: no limit
  return static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
}

std::string ReservedFile::shortage() const {
  const uint64_t free = free_bytes();
  return fmt::format("{}: needs {} bytes; {} are free in {} (at most {} fit)", path_, bytes_, free, options_.folder,
                     free / kBlockBytes * kBlockBytes);
}

}  // namespace esp::sync
