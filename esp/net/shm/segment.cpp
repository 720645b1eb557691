#include "esp/net/shm/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/format.h"
#include "esp/net/socket.h"

namespace esp::net {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr const char* kPrefix = "espalier-";

// Start time of a process (field 22 of /proc/PID/stat). Together with the pid it identifies a process uniquely. 0 if
// the process does not exist.
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

std::string path_of(const std::string& name) {
  return fmt::format("{}/{}", kDirectory, name);
}

Socket open_segment(const std::string& name, int flags) {
  int fd = open(path_of(name).c_str(), flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) throw IoError(fmt::format("cannot open shared memory {}: {}", path_of(name), errno_text(errno)));
  return Socket(fd);
}

// The segment file of the creator. The destructor unlinks its name, also after an exception.
struct SegmentFile {
  std::string name;
  Socket fd;
  ~SegmentFile() {
    if (fd) unlink(path_of(name).c_str());
  }
};

void create(SegmentFile& file, size_t bytes) {
  size_t left = available_shared_memory();
  if (bytes > left)
    throw IoError(fmt::format(
        "{}: got {} of free space; expected at least {}. Mount it with a larger size (docker run --shm-size)",
        kDirectory, format_bytes(left), format_bytes(bytes)));
  // Cleanups of other processes remove segments whose creator seems dead. A cleanup in another pid namespace does not
  // see this process, so the file stays locked as long as it has a name. A cleanup may still unlink the file between
  // its creation and the lock; then another name is tried.
  struct stat info {};
  do {
    file.name = fresh_name();
    file.fd = open_segment(file.name, O_CREAT | O_EXCL);
    flock(file.fd.fd(), LOCK_EX);
  } while (fstat(file.fd.fd(), &info) == 0 && info.st_nlink == 0);
  if (ftruncate(file.fd.fd(), static_cast<off_t>(bytes)) != 0)
    throw IoError(fmt::format("cannot size shared memory to {} bytes: {}", bytes, errno_text(errno)));
}

std::byte* map(const Socket& fd, size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.fd(), 0);
  if (mapped == MAP_FAILED)
    throw IoError(fmt::format("cannot map {} bytes of shared memory: {}", bytes, errno_text(errno)));
  return static_cast<std::byte*>(mapped);
}

size_t size_of_file(const Socket& fd, const std::string& name, int creator) {
  struct stat info {};
  if (fstat(fd.fd(), &info) != 0 || info.st_uid != geteuid() || info.st_size <= 0)
    throw CommError(CommError::Kind::corrupt, creator,
                    fmt::format("{} is not a shared-memory segment of this user", path_of(name)));
  return static_cast<size_t>(info.st_size);
}

}  // namespace

SharedSegment::SharedSegment(const World& world, const Group& group, const std::string& label, size_t bytes,
                             Deadline deadline) {
  std::string base = fmt::format("shm/{:x}/{}", group.id, label);
  int64_t opening = world.store->add(fmt::format("{}/opened/{}", base, group.rank), 1);
  std::string key = fmt::format("{}/{}", base, opening);

  SegmentFile file;
  if (group.rank == 0) {
    create(file, bytes);
    data_ = map(file.fd, bytes);
    bytes_ = bytes;
  } else {
    std::string name = wait_for_key(world, group, key, group.members[0], deadline);
    if (name.find('/') != std::string::npos || name.rfind(kPrefix, 0) != 0)
      throw CommError(CommError::Kind::corrupt, group.members[0],
                      fmt::format("segment name: got \"{}\"; expected a name of an Espalier segment", name));
    Socket fd = open_segment(name, 0);
    bytes_ = size_of_file(fd, name, group.members[0]);
    data_ = map(fd, bytes_);
  }
  try {
    if (group.rank == 0) world.store->set(key, file.name);
    if (world.store->add(key + "/mapped", 1) == group.size()) world.store->set(key + "/all", "1");
    wait_for_key(world, group, key + "/all", -1, deadline);
    if (group.rank == 0) {
      world.store->erase(key);
      world.store->erase(key + "/mapped");
    }
  } catch (...) {
    munmap(data_, bytes_);
    throw;
  }
}

SharedSegment::~SharedSegment() {
  munmap(data_, bytes_);
}

size_t available_shared_memory() {
  struct statvfs info {};
  if (statvfs(kDirectory, &info) != 0)
    throw IoError(fmt::format("cannot read the free space of {}: {}", kDirectory, errno_text(errno)));
  return static_cast<size_t>(info.f_bavail) * info.f_frsize;
}

int remove_orphaned_segments() {
  int removed = 0;
  DIR* directory = opendir(kDirectory);
  if (!directory) return 0;
  while (dirent* entry = readdir(directory)) {
    int pid = 0;
    unsigned long long started = 0;
    if (std::sscanf(entry->d_name, "espalier-%d-%llu-", &pid, &started) != 2) continue;
    struct stat info {};
    if (fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 || info.st_uid != geteuid()) continue;
    if (start_time(pid) == started) continue;
    const Socket file(openat(dirfd(directory), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file || flock(file.fd(), LOCK_SH | LOCK_NB) != 0) continue;
    if (unlinkat(dirfd(directory), entry->d_name, 0) == 0) ++removed;
  }
  closedir(directory);
  return removed;
}

}  // namespace esp::net
