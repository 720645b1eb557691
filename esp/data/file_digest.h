// Digest of a file's content: its size and a hash of its bytes, equal on every host. File names and times have no
// influence. A large file is hashed in sampled blocks, so that the digest is cheap enough for every start.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace esp::data {

struct FileDigest {
  uint64_t bytes = 0, hash = 0;
};

// Files are hashed completely if their total size is at most this. Otherwise the budget is divided among the files by
// size, and each file is hashed in blocks of 64 KiB (down to 4 KiB for more than 128 files), always with its first and
// last block.
inline constexpr uint64_t kDigestBytes = uint64_t{16} << 20;

// Digests in the order of `paths`. Throws IoError if a file cannot be read.
std::vector<FileDigest> digest_files(std::span<const std::string> paths);

}  // namespace esp::data
