// A file that is being written: NAME.partial until publish(), buffered, and able to go on from a known length.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "esp/data/source.h"
#include "esp/obs/file.h"

namespace esp::data {

class GrowingFile {
 public:
  // Keeps the first `keep_bytes` of what an earlier process left (also when it had published already); IoError when
  // there is less.
  GrowingFile(const std::string& path, uint64_t keep_bytes);

  void write(std::span<const std::byte> bytes);
  // Stored as `type`; an id that does not fit is an IoError.
  void write_tokens(std::span<const int32_t> tokens, TokenType type);
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t size() const { return size_; }
  // What was written is on the disk.
  void sync();
  void flush();

  static std::string partial(const std::string& path) { return path + ".partial"; }
  // NAME.partial becomes NAME; nothing happens when that was done before.
  static void publish(const std::string& path);

 private:
  std::string path_;
  obs::File file_;
  std::string buffer_;
  uint64_t size_;
};

// Renames survive a power cut once their folder is on the disk too.
void sync_folder_of(const std::string& path);

}  // namespace esp::data
