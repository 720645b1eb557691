// The safetensors file format: u64 length, a JSON header with tensor names and their byte ranges, then the data.
//
// Reading treats the file as untrusted. It checks the header length, valid UTF-8 JSON without duplicate keys, known
// types, bytes equal to shape × size without overflow, and ranges that are in order, without overlap or gap, and cover
// the file. Values are read with pread: if the file was truncated after it was opened, that is an IoError (a mapped
// file would raise SIGBUS). Writing streams: the header is written before the data, which starts at a multiple of 64. A
// reader is immutable; any thread may read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "esp/base/dtype.h"
#include "esp/obs/file.h"

namespace esp::ckpt {

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // byte range, counted from the start of the data

  uint64_t count() const;
};

// Move-only, because the index refers to the names in `tensors`.
struct SafetensorsHeader {
  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;

  std::vector<TensorEntry> tensors;                      // in the order of their position in the file
  std::unordered_map<std::string_view, size_t> by_name;  // tensor name to index in `tensors`
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // offset of the data in the file, in bytes
};

// Parses a header. `head` is the beginning of the file, at least up to the end of the header. `file_bytes` is the size
// of the file. An IoError gives the reason.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  explicit SafetensorsFile(obs::File file);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorEntry* find(std::string_view name) const;
  // Reads the bytes of a tensor from byte `first` on.
  void read(const TensorEntry& entry, uint64_t first, std::span<std::byte> to) const;
  std::vector<std::byte> bytes(const TensorEntry& entry) const;
  uint64_t file_bytes() const { return size_; }
  std::string checksum() const;                          // XXH3-128 of the whole file, hexadecimal
  std::string checksum(const TensorEntry& entry) const;  // XXH3-64 of the tensor's bytes, hexadecimal

 private:
  void read_at(uint64_t offset, std::span<std::byte> to) const;
  template <typename F>
  void for_each_chunk(uint64_t begin, uint64_t end, F&& f) const;

  obs::File file_;
  uint64_t size_ = 0;
  SafetensorsHeader header_;
};

struct WrittenFile {
  uint64_t bytes = 0;
  std::string checksum;                       // XXH3-128 of the whole file, hexadecimal
  std::vector<std::string> tensor_checksums;  // XXH3-64 of each tensor's bytes, in input order
};

struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  // the row-major values, not owned; if `data` is null, read(first, to) copies the bytes from offset `first` on into
  // `to`
  const void* data = nullptr;
  std::function<void(uint64_t first, std::span<std::byte> to)> read = {};
};

// Writes and syncs `path`, which must not exist. An IoError names the path and the cause.
WrittenFile write_safetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

std::string file_checksum(std::span<const std::byte> bytes);  // XXH3-128, hexadecimal

}  // namespace esp::ckpt
