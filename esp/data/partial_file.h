// An output file that is named NAME.partial until publish(). Writes are buffered; a later process can resume at a known
// length.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "esp/data/source.h"
#include "esp/obs/file.h"

namespace esp::data {

class PartialFile {
 public:
  // Keeps the first `keep_bytes` bytes of an earlier process's file, published or not. Throws IoError if it is shorter.
  PartialFile(const std::string& path, uint64_t keep_bytes);

  void write(std::span<const std::byte> bytes);
  // Writes the ids as `type`. Throws IoError for an id that does not fit.
  void write_tokens(std::span<const int32_t> tokens, TokenType type);
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  // Flushes the buffer and calls fsync: all bytes written so far are durable.
  void sync();
  void flush();

  static std::string partial(const std::string& path) { return path + ".partial"; }
  // Renames NAME.partial to NAME. Does nothing if that has already happened.
  static void publish(const std::string& path);

 private:
  std::string path_;
  obs::File file_;
  std::string buffer_;
  uint64_t size_;
};

// Calls fsync on the parent folder, so that a rename survives a power failure.
void sync_parent_folder(const std::string& path);

}  // namespace esp::data
