// Little-endian wire encoding. ByteWriter appends fields to a string; ByteReader reads them. All wire messages of this
// module use them. Reading past the end throws CommError(corrupt), so a decoder cannot read outside its input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "esp/base/error.h"

namespace esp::net {

class ByteWriter {
 public:
  template <typename Int>
  ByteWriter& put(Int value) {
    for (size_t i = 0; i < sizeof(Int); ++i) out_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
    return *this;
  }
  ByteWriter& raw(std::string_view bytes) {
    out_.append(bytes);
    return *this;
  }
  // Writes the length as 32 bits, then the bytes.
  ByteWriter& text(std::string_view bytes) { return put(static_cast<uint32_t>(bytes.size())).raw(bytes); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <typename Int>
  Int get() {
    std::string_view bytes = raw(sizeof(Int));
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(Int); ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    return static_cast<Int>(value);
  }
  std::string_view raw(size_t count) {
    if (count > left_.size()) throw CommError(CommError::Kind::corrupt, -1, "wire message: ends before its last field");
    std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }
  std::string_view text(size_t max_bytes) {
    auto count = get<uint32_t>();
    if (count > max_bytes) throw CommError(CommError::Kind::corrupt, -1, "wire message: a field exceeds its limit");
    return raw(count);
  }
  std::string_view rest() { return raw(left_.size()); }
  size_t left() const { return left_.size(); }
  void finish() const {
    if (!left_.empty()) throw CommError(CommError::Kind::corrupt, -1, "wire message: has bytes after its last field");
  }

 private:
  std::string_view left_;
};

}  // namespace esp::net
