#include "esp/data/file_digest.h"

#include <fcntl.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

constexpr uint64_t kMinBlockBytes = 4 << 10, kMaxBlockBytes = 64 << 10;

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) throw IoError(fmt::format("cannot read the size of {}: {}", path, errno_text(error.value())));
  return bytes;
}

// Hashes `num_blocks` blocks at equal distances. The last block ends at the end of the file.
FileDigest digest(const std::string& path, uint64_t num_blocks, uint64_t block_bytes) {
  const obs::File file(path, O_RDONLY);
  FileDigest found{file.size(), 0};
  if (found.bytes <= num_blocks * block_bytes) num_blocks = (found.bytes + block_bytes - 1) / block_bytes;
  const uint64_t last = found.bytes > block_bytes ? found.bytes - block_bytes : 0;
  for (uint64_t i = 0; i < num_blocks; ++i) {
    const bool all = found.bytes <= num_blocks * block_bytes;
    const uint64_t at =
        all ? i * block_bytes : last / (num_blocks - 1) * i + last % (num_blocks - 1) * i / (num_blocks - 1);
    const std::string block = file.read(at, block_bytes);
    found.hash = XXH3_64bits_withSeed(block.data(), block.size(), found.hash);
  }
  return found;
}

}  // namespace

std::vector<FileDigest> digest_files(std::span<const std::string> paths) {
  uint64_t all = 0;
  for (const std::string& path : paths) all += size_of(path);
  const uint64_t block_bytes =
      std::clamp(kDigestBytes / 2 / std::max<uint64_t>(1, paths.size()), kMinBlockBytes, kMaxBlockBytes);
  std::vector<FileDigest> digests;
  for (const std::string& path : paths) {
    const uint64_t blocks = (size_of(path) + block_bytes - 1) / block_bytes;
    const double share = all <= kDigestBytes ? 1 : static_cast<double>(kDigestBytes) / static_cast<double>(all);
    digests.push_back(
        digest(path, std::max<uint64_t>(2, static_cast<uint64_t>(static_cast<double>(blocks) * share)), block_bytes));
  }
  return digests;
}

}  // namespace esp::data
