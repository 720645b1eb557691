#include "apps/espalier/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::app {

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}", text);
    return;
  }
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
