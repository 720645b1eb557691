// Sequential bytes of a plain, gzip or zstd file. Memory is bounded for any input: a fixed input buffer and the
// decompressor's window (zstd: at most 128 MiB). A damaged file raises an IoError that names the file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace esp::data {

enum class Compression { none, gzip, zstd };
// True if the path ends with `extension` in any case: data.CSV has the extension ".csv".
bool has_extension(std::string_view path, std::string_view extension);
// Returns the compression by file name extension: gzip for .gz, zstd for .zst, none for any other.
Compression compression_of(std::string_view path);

// Not thread-safe: one thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out` and returns the number of bytes. A number below out.size() means the end of the stream.
  virtual size_t read(std::span<char> out) = 0;
  // Skips `bytes` bytes; a stream that cannot seek reads and discards them. Throws IoError if the stream ends earlier.
  virtual void skip(uint64_t bytes);
};

inline constexpr uint64_t kMaxDecompressedBytes = uint64_t{1} << 44;  // per file
// Limit against decompression bombs: decompressed bytes <= kFreeDecompressedBytes + ratio * compressed bytes read so
// far. gzip expands one byte to at most 1032 bytes; zstd expands it to 32768.
inline constexpr uint64_t kMaxDecompressedRatio = 1100, kFreeDecompressedBytes = uint64_t{64} << 20;

std::unique_ptr<ByteStream> open_byte_stream(const std::string& path, uint64_t max_bytes = kMaxDecompressedBytes);
// As open_byte_stream, for bytes in memory. The caller keeps `bytes` alive.
std::unique_ptr<ByteStream> make_byte_stream(std::string_view bytes, Compression compression, std::string name,
                                             uint64_t max_bytes = kMaxDecompressedBytes);

}  // namespace esp::data
