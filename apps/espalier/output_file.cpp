#include "apps/espalier/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::app {
namespace {

int data_fd = STDOUT_FILENO;  // file descriptor for data; global, as stdout is

void write_data(std::string_view text) {
  std::fflush(stdout);  // earlier output must come first
  while (!text.empty()) {
    const ssize_t wrote = ::write(data_fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) throw IoError(fmt::format("cannot write to stdout: {}", errno_text(errno)));
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

// Whether the path is a device or a pipe. These are written directly: a rename would replace them by a file.
bool is_written_in_place(const std::string& path) {
  std::error_code error;
  const bool of_system = path.starts_with("/dev/") || path.starts_with("/proc/");
  if (of_system && std::filesystem::is_symlink(path, error)) return true;  // for example /dev/stderr, /proc/self/fd/3
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

// Path of the temporary file that is later renamed to `path`.
std::string part_of(const std::string& path) {
  return fmt::format("{}.{}.part", path, ::getpid());
}

}  // namespace

void reserve_stdout_for_data() {
  std::fflush(stdout);
  const int kept = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (kept < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
    throw IoError(fmt::format("cannot reserve stdout for data: {}", errno_text(errno)));
  data_fd = kept;
}

void check_stdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw IoError(fmt::format("cannot write to stdout{}", errno == 0 ? "" : ": " + errno_text(errno)));
}

void check_output_file(const std::string& option, const std::string& path) {
  if (path == "-") return;
  if (path.empty()) throw UsageError(fmt::format("{}: got an empty path; expected a file to write", option));
  if (std::filesystem::is_directory(path))
    throw IoError(fmt::format("{}: got {}, a folder; expected a file to write", option, path));
  const auto refuse = [&] {
    throw IoError(fmt::format("{}: got {}, which cannot be written: {}; expected a file in a folder that exists",
                              option, path, errno_text(errno)));
  };
  if (is_written_in_place(path)) {  // a pipe can be opened only once, so it is not opened as a test
    if (::access(path.c_str(), W_OK) != 0) refuse();
    return;
  }
  const std::string beside = part_of(path);
  std::FILE* file = std::fopen(beside.c_str(), "we");
  if (!file) refuse();
  std::fclose(file);
  ::unlink(beside.c_str());
}

void check_not_an_input(const std::string& option, const std::string& path, std::span<const std::string> inputs) {
  std::error_code error;
  for (const std::string& input : inputs)
    if (std::filesystem::equivalent(input, path, error))
      throw UsageError(
          fmt::format("{}: got {}, which is read as input ({}); expected another file", option, path, input));
}

void check_output_folder(const std::string& option, const std::string& path) {
  std::filesystem::path there = std::filesystem::absolute(path);
  while (!std::filesystem::exists(there) && there.has_relative_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there))
    throw IoError(fmt::format("{}: got {}, but {} is a file; expected a folder", option, path, there.string()));
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    throw IoError(fmt::format("{}: got {}, which cannot be written: {}", option, path, errno_text(errno)));
}

void write_file(const std::string& path, const std::string& text) {
  // /dev/stdout is not opened: later output must follow this text, not overwrite it
  if (path == "-" || path == "/dev/stdout") return write_data(text);
  const bool in_place = is_written_in_place(path);
  const std::string beside = in_place ? path : part_of(path);
  std::FILE* file = std::fopen(beside.c_str(), in_place ? "ae" : "we");
  if (!file) throw IoError(fmt::format("cannot write {}: {}", path, errno_text(errno)));
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = written ? 0 : errno;
  if (std::fclose(file) != 0 && written) error = errno, written = false;
  if (written && !in_place && std::rename(beside.c_str(), path.c_str()) != 0) error = errno, written = false;
  if (!written) {
    if (!in_place) ::unlink(beside.c_str());
    throw IoError(fmt::format("cannot write {}: {}", path, errno_text(error)));
  }
}

}  // namespace esp::app
