#include "esp/ckpt/regular_file.h"

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

obs::File open_regular_file(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode))
    throw IoError(fmt::format("{}: got {}; expected a regular file. Copy the file itself into the checkpoint", path,
                              S_ISLNK(info.st_mode)   ? "a symbolic link"
                              : S_ISDIR(info.st_mode) ? "a folder"
                                                      : "a device, pipe or socket"));
  // The file may have been replaced after the check above. O_NOFOLLOW and O_NONBLOCK ensure that a symbolic link is not
  // followed and a pipe does not block.
  return obs::File(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
}

std::string read_regular_file(const std::string& path, uint64_t max_bytes) {
  const obs::File file = open_regular_file(path);
  const uint64_t bytes = file.size();
  if (bytes > max_bytes) throw IoError(fmt::format("{}: got {} bytes; expected at most {}", path, bytes, max_bytes));
  return file.read(0, bytes);
}

std::optional<uint64_t> regular_file_size(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(info.st_size);
}

void verify_file(const std::string& path, const FileRecord& record) {
  const std::string bytes = read_regular_file(path, kMaxAddedBytes);
  if (bytes.size() != record.bytes || file_checksum(std::as_bytes(std::span(bytes))) != record.checksum)
    throw IoError(
        fmt::format("{}: damaged: the manifest lists {} bytes with checksum {}", path, record.bytes, record.checksum));
}

}  // namespace esp::ckpt
