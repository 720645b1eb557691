// Limits the bytes that a tokenizer makes of an input: a file of one kilobyte can ask for a normalizer that makes
// gigabytes of one letter, or for tokens whose texts are that long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::data {

class GrowthLimit {
 public:
  // Unicode's normal forms make at most 18 characters of one, and no published normalizer makes as many as 64 bytes of
  // one byte.
  static constexpr size_t kMaxPerByte = 64;

  GrowthLimit(size_t input_bytes, size_t free_bytes)
      : input_bytes_(input_bytes), max_bytes_(kMaxPerByte * input_bytes + free_bytes) {}

  // Of a decoder: tokens of 256 bytes on average, or some long ones.
  static GrowthLimit of_ids(std::span<const int32_t> ids) { return {ids.size_bytes(), size_t{1} << 20}; }

  bool allows(size_t bytes) const { return bytes <= max_bytes_; }
  // `step` names the file and the step that makes too much. IoError.
  [[noreturn]] void fail(std::string_view step) const {
    throw IoError(
        fmt::format("{}: makes more than {} bytes of {} bytes; expected at most {} per byte. Is this the "
                    "tokenizer's own file?",
                    step, max_bytes_, input_bytes_, kMaxPerByte));
  }

 private:
  size_t input_bytes_, max_bytes_;
};

}  // namespace esp::data
