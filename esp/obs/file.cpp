#include "esp/obs/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::obs {

File::File(const std::string& path, int flags, mode_t mode)
    : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0) fail("cannot open");
}

File::~File() {
  close(fd_);
}

void File::fail(std::string_view what) const {
  throw IoError(fmt::format("{} {}: {}", what, path_, errno_text(errno)));
}

uint64_t File::size() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0) fail("cannot stat");
  return static_cast<uint64_t>(info.st_size);
}

void File::write_all(std::string_view text) {
  while (!text.empty()) {
    ssize_t n = write(fd_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string File::read(uint64_t offset, size_t bytes) const {
  std::string text(bytes, '\0');
  size_t got = 0;
  while (got < bytes) {
    ssize_t n = pread(fd_, text.data() + got, bytes - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read");
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

void File::truncate(uint64_t bytes) {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot truncate");
}

void File::sync() {
  if (fdatasync(fd_) != 0) fail("cannot sync");
}

std::string read_whole_file(const std::string& path, size_t max_bytes) {
  File file(path, O_RDONLY);
  uint64_t bytes = file.size();
  if (bytes > max_bytes) throw IoError(fmt::format("{}: got {} bytes; expected at most {}", path, bytes, max_bytes));
  return file.read(0, bytes);
}

void write_whole_file(const std::string& path, std::string_view text, bool synced) {
  std::string beside = fmt::format("{}.{}.tmp", path, getpid());
  try {
    File file(beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    file.write_all(text);
    if (synced) file.sync();
  } catch (...) {
    unlink(beside.c_str());
    throw;
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    int error = errno;
    unlink(beside.c_str());
    throw IoError(fmt::format("cannot rename {} to {}: {}", beside, path, errno_text(error)));
  }
}

}  // namespace esp::obs
