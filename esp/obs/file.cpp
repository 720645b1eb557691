#include "esp/obs/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::obs {

File::File(const std::string& path, int flags, mode_t mode)
    : path_(path), fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {
  if (fd_ < 0) fail("cannot open");
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) close(fd_);
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
  text.resize(read(offset, std::as_writable_bytes(std::span(text))));
  return text;
}

size_t File::read(uint64_t offset, std::span<std::byte> to) const {
  size_t got = 0;
  while (got < to.size()) {
    ssize_t n = pread(fd_, to.data() + got, to.size() - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read");
    if (n == 0) break;
    got += static_cast<size_t>(n);
  }
  return got;
}

void File::truncate(uint64_t bytes) {
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) fail("cannot truncate");
}

void File::sync() {
  if (fdatasync(fd_) != 0) fail("cannot sync");
}

File open_input_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must not block.
  File file(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) file.fail("cannot stat");
  if (S_ISREG(info.st_mode)) return file;
  if (S_ISDIR(info.st_mode)) {
    errno = EISDIR;
    file.fail("cannot read");
  }
  if (S_ISFIFO(info.st_mode))
    throw IoError(
        fmt::format("{}: got a pipe, which can be read only once; expected a regular file. Write the data to one "
                    "first: cat {} > FILE",
                    path, path));
  throw IoError(fmt::format("{}: got a device or socket; expected a regular file", path));
}

bool is_git_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs.github.com/spec/");
}

std::string read_whole_file(const std::string& path, size_t max_bytes) {
  const File file = open_input_file(path);
  uint64_t bytes = file.size();
  if (bytes > max_bytes) throw IoError(fmt::format("{}: got {} bytes; expected at most {}", path, bytes, max_bytes));
  std::string text = file.read(0, bytes);
  if (is_git_lfs_pointer(text))
    throw IoError(fmt::format("{}: got a Git LFS pointer, not the file itself. Fetch the file: git lfs pull", path));
  return text;
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
