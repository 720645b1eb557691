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

// The holder unlinks the lock file before it releases the lock. A lock is therefore valid only if the path still names
// the locked file.
bool lock_file_is_current(const obs::File& file) {
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
      if (lock_file_is_current(*file_)) return;
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) file_->fail("cannot lock");
    if (deadline.passed())
      throw IoError(fmt::format(
          "{}: another process holds this lock and writes the same files. Wait until it has finished", path));
    std::this_thread::sleep_for(std::min<Duration>(std::chrono::milliseconds(50), deadline.left()));
  }
}

FileLock::~FileLock() {
  unlink(file_->path().c_str());
}

}  // namespace esp::data
