// What tells one content of a file from another, the same on every host: size and a hash of the bytes. Names and times
// do not count. A large file is hashed in blocks from its beginning to its end, so that it costs little at every start.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace esp::data {

struct FileDigest {
  uint64_t bytes = 0, hash = 0;
};

// Files of up to this size together are hashed whole. Of more, each is hashed in blocks of 64 KiB (down to 4 KiB where
// there are more than 128 files): its share of so many bytes, and at least its first and last block.
inline constexpr uint64_t kDigestBytes = uint64_t{16} << 20;

// In the order given. IoError where one cannot be read.
std::vector<FileDigest> digest_files(std::span<const std::string> paths);

}  // namespace esp::data
