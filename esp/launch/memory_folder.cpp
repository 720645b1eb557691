#include "esp/launch/memory_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::launch {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPrefix = "espalier-snapshots-";

// The folder, locked; nothing when somebody else holds it, or it is not ours to touch.
net::Socket locked(const std::string& path) {
  net::Socket folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!folder || ::fstat(folder.fd(), &info) != 0 || info.st_uid != ::geteuid()) return {};
  if (::flock(folder.fd(), LOCK_EX | LOCK_NB) != 0) return {};
  // Whoever had it before may have removed it meanwhile.
  if (struct stat now{}; ::lstat(path.c_str(), &now) != 0 || now.st_ino != info.st_ino) return {};
  return folder;
}

}  // namespace

int sweep_memory_folders(const std::string& under) {
  int swept = 0;
  std::error_code error;
  for (auto at = fs::directory_iterator(under, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    if (!at->path().filename().string().starts_with(kPrefix)) continue;
    const net::Socket lock = locked(at->path().string());
    std::error_code ignored;
    if (lock && fs::remove_all(at->path(), ignored) > 0) ++swept;
  }
  return swept;
}

MemoryFolder::MemoryFolder(const std::string& under) {
  sweep_memory_folders(under);
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    std::string pattern = fmt::format("{}/{}XXXXXX", under, kPrefix);
    if (!::mkdtemp(pattern.data()))
      throw IoError(fmt::format("cannot make a folder for snapshots in {}: {}", under, errno_text(errno)));
    // Another launcher's sweep may be quicker than our lock: then it took the folder for one left behind.
    lock_ = locked(pattern);
    path_ = pattern;
    if (lock_) return;
  }
  throw IoError(fmt::format("cannot hold a folder for snapshots in {}", under));
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace esp::launch
