#include "apps/espalier/run_file_copy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"
#include "esp/train/run_config.h"

namespace esp::app {
namespace {

constexpr int kMinFd = 10;  // descriptors below this are used by ranks (launch/spawn.h)

}  // namespace

RunFileCopy::RunFileCopy(std::string path, std::string text) : path_(std::move(path)), text_(std::move(text)) {
  const int sealable = ::memfd_create("espalier-run-file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // Containers may block memfd_create. Then an unnamed temporary file is used, which cannot be sealed.
  const std::unique_ptr<FILE, int (*)(FILE*)> unnamed(sealable < 0 ? std::tmpfile() : nullptr, std::fclose);
  const int fd = unnamed ? ::fileno(unnamed.get()) : sealable;
  fd_ = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD, kMinFd);  // without close-on-exec, so ranks inherit it
  if (sealable >= 0) ::close(sealable);
  if (fd_ < 0) throw IoError("cannot copy the run file: " + errno_text(errno));
  for (size_t at = 0; at < text_.size();) {
    const ssize_t wrote = ::write(fd_, text_.data() + at, text_.size() - at);
    if (wrote < 0 && errno != EINTR) throw IoError("cannot copy the run file: " + errno_text(errno));
    if (wrote > 0) at += static_cast<size_t>(wrote);
  }
  ::fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
}

RunFileCopy::~RunFileCopy() {
  if (fd_ >= 0) ::close(fd_);
}

std::string RunFileCopy::variable() const {
  return fmt::format("{}:{}", fd_, path_);
}

bool RunFileCopy::is_outdated() const {
  try {
    return obs::read_whole_file(path_, train::kMaxRunFileBytes) != text_;
  } catch (const IoError&) {
    return true;
  }
}

std::optional<std::string> inherited_run_file(const launch::Environment& environment, const std::string& path) {
  const auto at = environment.find(RunFileCopy::kVariable);
  if (at == environment.end()) return std::nullopt;
  const std::string& value = at->second;
  int fd = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), fd);
  const auto used = static_cast<size_t>(end - value.data());
  if (error != std::errc() || used == value.size() || value[used] != ':' || value.substr(used + 1) != path)
    return std::nullopt;  // the variable names another file: it belongs to an outer `espalier train`
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
    throw UsageError(
        fmt::format("{} = {}: got a descriptor that is not open; expected the one that espalier launch "
                    "opened. Unset the variable",
                    RunFileCopy::kVariable, value));
  std::string text(train::kMaxRunFileBytes + 1, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::pread(fd, text.data() + have, text.size() - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError("cannot read the launcher's copy of the run file: " + errno_text(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  text.resize(have);
  return text;
}

}  // namespace esp::app
