#include "esp/net/shm/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::net {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr const char* kPrefix = "espalier-";

// Field 22 of /proc/PID/stat: with the pid it names a process for good. 0 when there is none.
uint64_t start_time(int pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  auto after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  std::istringstream fields(text.substr(after_name + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

std::string fresh_name() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) throw IoError("getrandom failed");
  return fmt::format("{}{}-{}-{:016x}", kPrefix, getpid(), start_time(getpid()), random);
}

int open_segment(const std::string& name, int flags) {
  std::string path = fmt::format("{}/{}", kDirectory, name);
  int fd = open(path.c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) throw IoError(fmt::format("cannot open shared memory {}: {}", path, errno_text(errno)));
  return fd;
}

}  // namespace

SharedSegment::SharedSegment(const World& world, const Group& group, const std::string& label, size_t bytes,
                             Deadline deadline)
    : bytes_(bytes) {
  std::string key = fmt::format("shm/{:x}/{}", group.id, label);
  std::string name;
  int fd = -1;
  bool creator = group.rank == 0;
  if (creator) {
    name = fresh_name();
    fd = open_segment(name, O_CREAT | O_EXCL);
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      int error = errno;
      close(fd);
      unlink(fmt::format("{}/{}", kDirectory, name).c_str());
      throw IoError(fmt::format("cannot size shared memory to {} bytes: {}", bytes, errno_text(error)));
    }
    world.store->set(key, name);
  } else {
    name = world.store->get(key, deadline);
    if (name.find('/') != std::string::npos || name.rfind(kPrefix, 0) != 0)
      throw CommError(CommError::Kind::corrupt, group.members[0], fmt::format("\"{}\" is no segment name", name));
    fd = open_segment(name, 0);
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  int error = errno;
  close(fd);
  if (mapped == MAP_FAILED)
    throw IoError(fmt::format("cannot map {} bytes of shared memory: {}", bytes, errno_text(error)));
  data_ = static_cast<std::byte*>(mapped);

  int64_t mapped_by = world.store->add(key + "/mapped", 1);
  if (mapped_by == group.size()) world.store->set(key + "/all", "1");
  try {
    world.store->get(key + "/all", deadline);
  } catch (...) {
    munmap(data_, bytes_);
    if (creator) unlink(fmt::format("{}/{}", kDirectory, name).c_str());
    throw;
  }
  if (creator) unlink(fmt::format("{}/{}", kDirectory, name).c_str());
}

SharedSegment::~SharedSegment() { munmap(data_, bytes_); }

int sweep_segments() {
  int swept = 0;
  DIR* directory = opendir(kDirectory);
  if (!directory) return 0;
  while (dirent* entry = readdir(directory)) {
    int pid = 0;
    unsigned long long started = 0;
    if (std::sscanf(entry->d_name, "espalier-%d-%llu-", &pid, &started) != 2) continue;
    struct stat info {};
    if (fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_uid != getuid()) continue;
    if (start_time(pid) == started) continue;
    if (unlinkat(dirfd(directory), entry->d_name, 0) == 0) ++swept;
  }
  closedir(directory);
  return swept;
}

}  // namespace esp::net
