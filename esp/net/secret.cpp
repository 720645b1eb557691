#include "esp/net/secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/net/crypto.h"
#include "esp/net/socket.h"

namespace esp::net {
namespace {

constexpr size_t kMinSecretBytes = 16;
constexpr size_t kMaxSecretBytes = 4096;
constexpr int kMaxNames = 1000;
constexpr const char* kSharedMemory = "/dev/shm";

// Describes what is wrong with the owner or permissions of the file; empty if only this user has access.
std::string fault_of(const struct stat& info) {
  if (info.st_uid != geteuid()) return fmt::format("belongs to user {}, not to user {}", info.st_uid, geteuid());
  if (info.st_mode & 077) return fmt::format("has mode {:04o}, open to other users", info.st_mode & 07777);
  return {};
}

std::string read_all(int fd, const std::string& path) {
  std::string bytes(kMaxSecretBytes + 1, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    ssize_t got = read(fd, bytes.data() + filled, bytes.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(fmt::format("cannot read the secret file {}: {}", path, errno_text(errno)));
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

// True if the directory exists and only this user can enter it. False if it is missing or belongs to another user.
// Throws IoError if this user owns the path but it is not a directory, or others may enter it.
bool is_own_directory(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    throw IoError(fmt::format("secret folder: cannot stat {}: {}", path, errno_text(errno)));
  }
  if (info.st_uid != geteuid()) return false;
  if (!S_ISDIR(info.st_mode)) throw IoError(fmt::format("secret folder {}: is not a directory. Remove it", path));
  if (auto fault = fault_of(info); !fault.empty())
    throw IoError(fmt::format("secret folder {} {}. Remove it, or set ESPALIER_SECRET_FILE", path, fault));
  return true;
}

// All processes of this user try the same names in the same order and take the first directory that belongs to this
// user. Another user can occupy a name, but all processes still select the same directory.
std::string own_directory(const std::string& under) {
  const auto name = [&](int i) {
    return fmt::format("{}/espalier-{}{}", under, geteuid(), i ? fmt::format("-{}", i) : "");
  };
  for (int i = 0; i < kMaxNames; ++i)
    if (is_own_directory(name(i))) return name(i);
  for (int i = 0; i < kMaxNames; ++i) {
    if (mkdir(name(i).c_str(), 0700) != 0 && errno != EEXIST)
      throw IoError(fmt::format("cannot create {}: {}", name(i), errno_text(errno)));
    if (is_own_directory(name(i))) return name(i);
  }
  throw IoError(fmt::format("secret folder: {} to {} belong to other users. Set XDG_RUNTIME_DIR to your own folder",
                            name(0), name(kMaxNames - 1)));
}

// Writes a secret under a temporary name, then links it to `path`. If several processes do this at once, the first link
// wins. A reader never sees a partial secret.
void make_secret_file(const std::string& path) {
  std::string temporary = fmt::format("{}.{}", path, to_hex(random_bytes(8)));
  Socket file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw IoError(fmt::format("cannot create {}: {}", temporary, errno_text(errno)));
  std::string bytes = random_bytes(kDigestBytes);
  std::string text = to_hex(bytes);
  bool written = write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  wipe(bytes);
  wipe(text);
  int error = 0;
  if (!written || (link(temporary.c_str(), path.c_str()) != 0 && errno != EEXIST)) error = errno;
  unlink(temporary.c_str());
  if (error != 0) throw IoError(fmt::format("cannot create the secret {}: {}", path, errno_text(error)));
}

}  // namespace

// Memory in separate pages, which core files leave out (MADV_DONTDUMP).
class Secret::Pages {
 public:
  explicit Pages(std::string_view bytes)
      : data_(mmap(nullptr, bytes.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        size_(bytes.size()) {
    if (data_ == MAP_FAILED) throw IoError(fmt::format("no memory for the job secret: {}", errno_text(errno)));
    madvise(data_, size_, MADV_DONTDUMP);
    std::memcpy(data_, bytes.data(), size_);
  }
  ~Pages() {
    explicit_bzero(data_, size_);
    munmap(data_, size_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_;
  size_t size_;
};

Secret::Secret(std::string bytes) {
  if (!bytes.empty()) pages_ = std::make_shared<const Pages>(bytes);
  wipe(bytes);
}

std::string_view Secret::bytes() const {
  return pages_ ? pages_->bytes() : std::string_view();
}

Secret Secret::random() {
  return Secret(random_bytes(kDigestBytes));
}

Secret load_secret(const std::string& path) {
  // O_NONBLOCK: another program may have put a pipe at this path, and opening it must not block.
  Socket file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ELOOP)
    throw IoError(fmt::format("the secret file {} is a symbolic link; give the file itself", path));
  if (!file) throw IoError(fmt::format("cannot open the secret file {}: {}", path, errno_text(errno)));
  struct stat info {};
  if (fstat(file.fd(), &info) != 0)
    throw IoError(fmt::format("cannot stat the secret file {}: {}", path, errno_text(errno)));
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("the secret file {} is not a regular file", path));
  if (auto fault = fault_of(info); !fault.empty())
    throw IoError(
        fmt::format("the secret file {} {}; only its owner may have access: chmod 600 {}", path, fault, path));

  std::string bytes = read_all(file.fd(), path);
  size_t length = bytes.find_last_not_of(" \t\r\n") + 1;
  bool fits = length >= kMinSecretBytes && bytes.size() <= kMaxSecretBytes;
  std::string digest = fits ? sha256(std::string_view(bytes).substr(0, length)) : std::string();
  wipe(bytes);
  if (!fits)
    throw IoError(fmt::format("secret file {}: got {} bytes; expected {} to {}. Write one with `openssl rand -hex 32`",
                              path, length, kMinSecretBytes, kMaxSecretBytes));
  return Secret(std::move(digest));
}

Secret local_secret(const std::string& runtime_dir) {
  const std::string path = own_directory(runtime_dir.empty() ? kSharedMemory : runtime_dir) + "/secret";
  if (struct stat info{}; lstat(path.c_str(), &info) != 0) make_secret_file(path);
  return load_secret(path);
}

}  // namespace esp::net
