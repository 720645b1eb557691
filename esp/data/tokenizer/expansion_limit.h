// Limits the output size of a tokenizer relative to its input. A tokenizer file of one kilobyte can define a normalizer
// that expands one character to gigabytes, or tokens with texts of that size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::data {

class ExpansionLimit {
 public:
  // Unicode's normal forms expand one character to at most 18, and no published normalizer reaches 64 bytes per byte.
  static constexpr size_t kMaxPerByte = 64;

  ExpansionLimit(size_t input_bytes, size_t free_bytes)
      : input_bytes_(input_bytes), max_bytes_(kMaxPerByte * input_bytes + free_bytes) {}

  // For a decoder: 256 bytes per id on average, plus 1 MiB for some long tokens.
  static ExpansionLimit for_ids(std::span<const int32_t> ids) { return {ids.size_bytes(), size_t{1} << 20}; }

  bool allows(size_t bytes) const { return bytes <= max_bytes_; }
  // Throws IoError. `step` names the file and the step that exceeds the limit.
  [[noreturn]] void fail(std::string_view step) const {
    throw IoError(
        fmt::format("{}: expands {} bytes to more than {} bytes; expected at most {} per byte. Is this the "
                    "tokenizer's own file?",
                    step, input_bytes_, max_bytes_, kMaxPerByte));
  }

 private:
  size_t input_bytes_, max_bytes_;
};

}  // namespace esp::data
