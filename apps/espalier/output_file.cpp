#include "apps/espalier/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::app {
namespace {

int data_fd = STDOUT_FILENO;  // of the process, as stdout itself is

void write_data(std::string_view text) {
  std::fflush(stdout);  // what was printed before comes first
  while (!text.empty()) {
    const ssize_t wrote = ::write(data_fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw IoError(fmt::format("cannot write to stdout: {}", errno_text(errno)));
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace

void keep_stdout_for_data() {
  std::fflush(stdout);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (kept < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    throw IoError(fmt::format("cannot keep stdout for data: {}", errno_text(errno)));
  data_fd = kept;
}

void check_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw IoError(fmt::format("cannot write to stdout{}", errno == 0 ? "" : ": " + errno_text(errno)));
}

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") return write_data(text);
  std::string beside = fmt::format("{}.{}.part", path, ::getpid());
  std::FILE* file = std::fopen(beside.c_str(), "we");
  if (!file) throw IoError(fmt::format("cannot write {}: {}", path, errno_text(errno)));
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = written ? 0 : errno;
  if (std::fclose(file) != 0 && written) error = errno, written = false;
  if (written && std::rename(beside.c_str(), path.c_str()) != 0) error = errno, written = false;
  if (!written) {
    ::unlink(beside.c_str());
    throw IoError(fmt::format("cannot write {}: {}", path, errno_text(error)));
  }
}

}  // namespace esp::app
