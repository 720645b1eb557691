#include "esp/net/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

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

// What is wrong with who may touch it; empty when only this user may.
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

// Whether the directory is there, and only this user can enter it. False: it is not there, or another user's.
bool is_own_directory(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    throw IoError(fmt::format("cannot look at {}: {}", path, errno_text(errno)));
  }
  if (info.st_uid != geteuid()) return false;
  if (!S_ISDIR(info.st_mode)) throw IoError(fmt::format("{} is not a directory; remove it", path));
  if (auto fault = fault_of(info); !fault.empty())
    throw IoError(fmt::format("{} {}; remove it, or name a secret file of your own", path, fault));
  return true;
}

// All processes of this user try the same names in the same order and take the first that is theirs: another user can
// occupy a name, but cannot make them disagree.
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
  throw IoError(
      fmt::format("{} to {} belong to other users; remove them, or set XDG_RUNTIME_DIR to a folder of your own",
                  name(0), name(kMaxNames - 1)));
}

// Writes a secret under a name of our own and links it to `path`: whoever links first has made it, and nobody ever
// reads half of one.
void make_secret_file(const std::string& path) {
  std::string draft = fmt::format("{}.{}", path, to_hex(random_bytes(8)));
  Socket file(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) throw IoError(fmt::format("cannot create {}: {}", draft, errno_text(errno)));
  std::string bytes = random_bytes(kDigestBytes);
  std::string text = to_hex(bytes);
  bool written = write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  wipe(bytes);
  wipe(text);
  int error = 0;
  if (!written || (link(draft.c_str(), path.c_str()) != 0 && errno != EEXIST)) error = errno;
  unlink(draft.c_str());
  if (error != 0) throw IoError(fmt::format("cannot create the secret {}: {}", path, errno_text(error)));
}

}  // namespace

Secret::~Secret() {
  wipe(bytes_);
}

Secret Secret::random() {
  return Secret(random_bytes(kDigestBytes));
}

Secret load_secret(const std::string& path) {
  // O_NONBLOCK: opening a pipe someone put there must not hang.
  Socket file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file && errno == ELOOP)
    throw IoError(fmt::format("the secret file {} is a symbolic link; give the file itself", path));
  if (!file) throw IoError(fmt::format("cannot open the secret file {}: {}", path, errno_text(errno)));
  struct stat info {};
  if (fstat(file.fd(), &info) != 0)
    throw IoError(fmt::format("cannot look at the secret file {}: {}", path, errno_text(errno)));
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("the secret file {} is not a regular file", path));
  if (auto fault = fault_of(info); !fault.empty())
    throw IoError(fmt::format("the secret file {} {}; it must be yours alone: chmod 600 {}", path, fault, path));

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
