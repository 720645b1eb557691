#include "esp/ckpt/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <span>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/ckpt/safetensors.h"

namespace esp::ckpt {
namespace {

constexpr uint64_t kMaxAddedBytes = uint64_t{1} << 30;

}  // namespace

obs::File open_own_file(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    throw IoError(fmt::format("{} is {}: a checkpoint holds regular files only; put the file itself there", path,
                              S_ISLNK(info.st_mode)   ? "a symbolic link"
                              : S_ISDIR(info.st_mode) ? "a folder"
                                                      : "a device, pipe or socket"));
  // What has taken its place since then is not followed and not waited for either.
  return obs::File(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
}

std::string read_own_file(const std::string& path, uint64_t max_bytes) {
  const obs::File file = open_own_file(path);
  const uint64_t bytes = file.size();
  if (bytes > max_bytes) throw IoError(fmt::format("{} has {} bytes; at most {} are read", path, bytes, max_bytes));
  return file.read(0, bytes);
}

std::optional<uint64_t> own_file_size(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(info.st_size);
}

void check_own_file(const std::string& path, const FileRecord& record) {
  const std::string bytes = read_own_file(path, kMaxAddedBytes);
  if (bytes.size() != record.bytes || checksum_of(std::as_bytes(std::span(bytes))) != record.checksum)
    throw IoError(fmt::format("{}: damaged: the manifest tells of {} bytes with checksum {}", path, record.bytes,
                              record.checksum));
}

}  // namespace esp::ckpt
