#include "esp/launch/secret.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/net/secret.h"
#include "esp/net/socket.h"

namespace esp::launch {
namespace {

constexpr size_t kFewestBytes = 16, kMostBytes = 4096;

std::string read_all(int fd, const std::string& what) {
  std::string bytes(kMostBytes + 1, '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    ssize_t got = ::read(fd, bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw IoError(fmt::format("cannot read the job secret from {}: {}", what, errno_text(errno)));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

net::Secret checked(std::string bytes, const std::string& what) {
  if (bytes.size() < kFewestBytes || bytes.size() > kMostBytes)
    throw UsageError(fmt::format("job secret from {}: got {} bytes; expected {} to {}", what, bytes.size(),
                                 kFewestBytes, kMostBytes));
  return net::Secret(std::move(bytes));
}

}  // namespace

net::Secret read_secret(const Environment& environment) {
  if (auto it = environment.find("ESPALIER_SECRET_FD"); it != environment.end()) {
    int fd = -1;
    auto [end, error] = std::from_chars(it->second.data(), it->second.data() + it->second.size(), fd);
    if (error != std::errc() || *end != '\0' || fd < 0 || ::fcntl(fd, F_GETFD) < 0)
      throw UsageError(fmt::format("ESPALIER_SECRET_FD: got \"{}\"; expected an open descriptor", it->second));
    net::Socket closer(fd);
    return checked(read_all(fd, "ESPALIER_SECRET_FD"), "ESPALIER_SECRET_FD");
  }
  auto it = environment.find("ESPALIER_SECRET_FILE");
  if (it == environment.end()) return {};
  return net::load_secret(it->second);
}

int secret_pipe(const net::Secret& secret) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw IoError("cannot create the pipe for the job secret: " + errno_text(errno));
  net::Socket write_end(ends[1]);
  // The secret is far smaller than the capacity of a pipe, so one write neither blocks nor writes only a part.
  ssize_t wrote = ::write(ends[1], secret.bytes().data(), secret.bytes().size());
  ESP_CHECK(wrote == static_cast<ssize_t>(secret.bytes().size()), "job secret: the pipe accepted {} bytes of {}", wrote,
            secret.bytes().size());
  return ends[0];
}

}  // namespace esp::launch
