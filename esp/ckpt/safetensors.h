// The safetensors file format: u64 length, a JSON header naming tensors and their byte ranges, then the bytes.
//
// Reading maps the file and trusts nothing: header length, UTF-8 JSON without duplicate keys, known types, bytes equal
// to shape × size without overflow, ranges in order, without overlap or hole, covering the file. Writing streams: the
// header is known before the data, which begin at a multiple of 64. A reader is immutable; any thread may read.
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
  uint64_t begin = 0, end = 0;  // bytes from the start of the data

  uint64_t count() const;
};

// Moved and not copied: the index holds views of the names.
struct SafetensorsHeader {
  SafetensorsHeader() = default;
  SafetensorsHeader(SafetensorsHeader&&) = default;
  SafetensorsHeader& operator=(SafetensorsHeader&&) = default;

  std::vector<TensorEntry> tensors;                      // by position in the file
  std::unordered_map<std::string_view, size_t> by_name;  // index into `tensors`
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // in the file
};

// `head` is the file's beginning (at least the header), `file_bytes` its whole size. IoError says what is wrong.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name);

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  explicit SafetensorsFile(const obs::File& file);  // opened by the caller, and no longer needed afterwards
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const TensorEntry* find(std::string_view name) const;
  std::span<const std::byte> bytes(const TensorEntry& entry) const;
  uint64_t file_bytes() const { return size_; }
  std::span<const std::byte> whole() const { return {data_, size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  SafetensorsHeader header_;
};

struct WrittenFile {
  uint64_t bytes = 0;
  std::string checksum;                       // XXH3-128 of the whole file, hexadecimal
  std::vector<std::string> tensor_checksums;  // XXH3-64 of each tensor's bytes, in the order given
};

struct TensorToWrite {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;  // lent; row-major. Null: what `read` puts into `to`, bytes from `first` on
  std::function<void(uint64_t first, std::span<std::byte> to)> read = {};
};

// Writes and syncs `path`, which must not exist. IoError names path and cause.
WrittenFile write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

std::string checksum_of(std::span<const std::byte> bytes);        // XXH3-128
std::string short_checksum_of(std::span<const std::byte> bytes);  // XXH3-64

}  // namespace esp::ckpt
