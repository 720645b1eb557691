#include "esp/net/host.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include <fmt/format.h>

#include "esp/net/crypto.h"

namespace esp::net {
namespace {

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Device and inode: the identity of a file system root or of a namespace. Zeros if it does not exist.
std::string identity_of(const char* path) {
  struct stat info {};
  if (stat(path, &info) != 0) return "0:0";
  return fmt::format("{}:{}", info.st_dev, info.st_ino);
}

}  // namespace

std::string host_identity(const std::string& name) {
  std::string facts =
      fmt::format("{} {} {} {} {} {}", first_line("/proc/sys/kernel/random/boot_id"), identity_of("/dev/shm"),
                  geteuid(), identity_of("/proc/self/ns/pid"), identity_of("/proc/self/ns/net"), name);
  utsname system{};
  uname(&system);
  std::string shown = name.empty() ? system.nodename : name;
  return fmt::format("{}#{}", shown.substr(0, 128), to_hex(sha256(facts).substr(0, 8)));
}

}  // namespace esp::net
