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

// Opens and locks the folder. Returns an empty socket if another process holds the lock or another user owns the
// folder.
net::Socket lock_folder(const std::string& path) {
  net::Socket folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!folder || ::fstat(folder.fd(), &info) != 0 || info.st_uid != ::geteuid()) return {};
  if (::flock(folder.fd(), LOCK_EX | LOCK_NB) != 0) return {};
  // The path may no longer lead to the locked folder: its previous owner may have removed it before the lock was taken.
  if (struct stat now{}; ::lstat(path.c_str(), &now) != 0 || now.st_ino != info.st_ino) return {};
  return folder;
}

}  // namespace

int sweep_memory_folders(const std::string& under) {
  int swept = 0;
  std::error_code error;
  for (auto at = fs::directory_iterator(under, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    if (!at->path().filename().string().starts_with(kPrefix)) continue;
    const net::Socket lock = lock_folder(at->path().string());
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
      throw IoError(fmt::format("cannot create a folder for snapshots in {}: {}", under, errno_text(errno)));
    // The sweep of another launcher may lock and remove the new folder before it is locked here; then a new one is
    // made.
    lock_ = lock_folder(pattern);
    path_ = pattern;
    if (lock_) return;
  }
  throw IoError(fmt::format("cannot lock a folder for snapshots in {}", under));
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace esp::launch
