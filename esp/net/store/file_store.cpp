#include "esp/net/store/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <ctime>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/crypto.h"
#include "esp/net/socket.h"
#include "esp/net/store/limits.h"

namespace esp::net {
namespace {

constexpr auto kFirstPause = std::chrono::milliseconds(1), kLastPause = std::chrono::milliseconds(50);
constexpr std::string_view kTemporaryPrefix = "temporary-";

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw IoError(fmt::format("cannot {} {}: {}", what, path, errno_text(errno)));
}

// Locks the directory until the end of the scope. Each call opens the lock file separately, so the lock also works
// between threads.
Socket lock_directory(const std::string& directory) {
  std::string path = directory + "/lock";
  Socket file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) fail("open", path);
  while (flock(file.fd(), LOCK_EX) != 0)
    if (errno != EINTR) fail("lock", path);
  return file;
}

}  // namespace

FileStore::FileStore(std::string directory) : directory_(std::move(directory)) {
  if (mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST) fail("create", directory_);
  struct stat info {};
  if (stat(directory_.c_str(), &info) != 0) fail("stat", directory_);
  if (!S_ISDIR(info.st_mode)) throw IoError(fmt::format("file store {}: is not a directory", directory_));
  if (info.st_uid != geteuid() || (info.st_mode & 022))
    throw IoError(
        fmt::format("{}: owned by user {} with mode {:04o}; expected a directory that only user {} can write to",
                    directory_, info.st_uid, info.st_mode & 07777, geteuid()));
  remove_temporary_files();
}

// Temporary files are written and renamed under the lock. A temporary file found while this process holds the lock
// belongs to a process that died.
void FileStore::remove_temporary_files() const {
  const Socket lock = lock_directory(directory_);
  std::unique_ptr<DIR, int (*)(DIR*)> list(opendir(directory_.c_str()), closedir);
  if (!list) fail("list", directory_);
  while (dirent* entry = readdir(list.get())) {
    if (std::string_view(entry->d_name).starts_with(kTemporaryPrefix)) unlinkat(dirfd(list.get()), entry->d_name, 0);
  }
}

// The key as a file name if its characters permit it; otherwise the hash of the key.
std::string FileStore::path_of(std::string_view key) const {
  std::string name;
  for (unsigned char c : key)
    name += std::isalnum(c) || c == '-' || c == '_' ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02x}", c);
  if (name.size() > 200) return fmt::format("{}/hash-{}", directory_, to_hex(sha256(key)));
  return fmt::format("{}/key-{}", directory_, name);
}

void FileStore::replace(const std::string& path, std::string_view value) const {
  std::string temporary = fmt::format("{}/{}{}", directory_, kTemporaryPrefix, to_hex(random_bytes(8)));
  Socket file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) fail("create", temporary);
  bool written = write(file.fd(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
  if (!written || rename(temporary.c_str(), path.c_str()) != 0) {
    int error = errno;
    unlink(temporary.c_str());
    errno = error;
    fail("write", path);
  }
}

void FileStore::set(std::string_view key, std::string_view value) {
  check_store_sizes(key, value);
  Socket lock = lock_directory(directory_);
  replace(path_of(key), value);
}

std::string FileStore::get(std::string_view key, Deadline deadline) {
  for (auto pause = kFirstPause;; pause = std::min(pause * 2, kLastPause)) {
    if (auto value = try_get(key)) return *value;
    if (deadline.passed())
      throw CommError(
          CommError::Kind::timeout, -1,
          fmt::format("timeout: no rank has written the value that this rank waits for into {}", directory_));
    std::this_thread::sleep_for(std::min<Duration>(pause, deadline.left()));
  }
}

std::optional<std::string> FileStore::try_get(std::string_view key) {
  check_store_sizes(key, {});
  std::string path = path_of(key);
  Socket file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno == ENOENT) return {};
  if (!file) fail("open", path);
  std::string value(kMaxValueBytes + 1, '\0');
  ssize_t got = pread(file.fd(), value.data(), value.size(), 0);
  if (got < 0) fail("read", path);
  if (static_cast<size_t>(got) > kMaxValueBytes)
    throw IoError(fmt::format("{} exceeds the maximum store value of {} bytes", path, kMaxValueBytes));
  value.resize(static_cast<size_t>(got));
  return value;
}

int64_t FileStore::add(std::string_view key, int64_t delta) {
  check_store_sizes(key, {});
  Socket lock = lock_directory(directory_);
  int64_t sum = 0;
  if (auto text = try_get(key)) {
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), sum);
    if (error != std::errc() || end != text->data() + text->size())
      throw UsageError(fmt::format("rendezvous store: a counter holds {} bytes that are not a number", text->size()));
  }
  if (__builtin_add_overflow(sum, delta, &sum)) throw UsageError("rendezvous store: a counter would overflow");
  replace(path_of(key), std::to_string(sum));
  return sum;
}

void FileStore::erase(std::string_view key) {
  check_store_sizes(key, {});
  Socket lock = lock_directory(directory_);
  std::string path = path_of(key);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) fail("remove", path);
}

}  // namespace esp::net
