#include "esp/data/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::data {
namespace {

// The holder removes the file before it lets go, so a lock counts only on the file that still has the name.
bool still_named(const obs::File& file) {
  struct stat ours {
  }, named{};
  return fstat(file.fd(), &ours) == 0 && stat(file.path().c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
         ours.st_dev == named.st_dev;
}

}  // namespace

FileLock::FileLock(const std::string& path, Deadline deadline) {
  while (true) {
    file_ = std::make_unique<obs::File>(path, O_RDWR | O_CREAT);
    if (flock(file_->fd(), LOCK_EX | LOCK_NB) == 0) {
      if (still_named(*file_)) return;
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) file_->fail("cannot lock");
    if (deadline.passed()) throw IoError(fmt::format("another process holds {}: it is making the same files", path));
    std::this_thread::sleep_for(std::min<Duration>(std::chrono::milliseconds(50), deadline.left()));
  }
}

FileLock::~FileLock() {
  unlink(file_->path().c_str());
}

}  // namespace esp::data
