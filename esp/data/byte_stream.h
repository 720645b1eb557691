// Bytes in order out of a plain, gzip or zstd file. Memory is bounded whatever the file says: a fixed input buffer and
// the decompressor's window (zstd: 128 MiB at most). Damage is an IoError that names the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace esp::data {

enum class Compression { none, gzip, zstd };
// By the end of the name: .gz, .zst.
Compression compression_of(std::string_view path);

// One thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills as much of `out` as there is; less than all of it only at the end.
  virtual size_t read(std::span<char> out) = 0;
  // Goes past `bytes`, by reading them where there is no other way. Beyond the end is an IoError.
  virtual void skip(uint64_t bytes);
};

inline constexpr uint64_t kMaxDecompressedBytes = uint64_t{1} << 44;  // of one file
// Of each compressed byte read so far, beyond what is free. gzip makes 1032 bytes of one at most; zstd makes 32768.
inline constexpr uint64_t kMaxDecompressedRatio = 1100, kFreeDecompressedBytes = uint64_t{64} << 20;

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, uint64_t max_bytes = kMaxDecompressedBytes);
// The same over bytes in memory, which are lent.
std::unique_ptr<ByteStream> make_byte_stream(std::string_view bytes, Compression compression, std::string name,
                                             uint64_t max_bytes = kMaxDecompressedBytes);

}  // namespace esp::data
