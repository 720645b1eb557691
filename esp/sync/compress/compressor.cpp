#include "esp/sync/compress/compressor.h"

#include <vector>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/sync/compress/scratch.h"

namespace esp::sync {

void Compressor::check(int64_t count) const {
  if (count < 0 || count >= int64_t{1} << 32)
    throw UsageError(fmt::format("compression: got a vector of {} values; expected at most 4294967295", count));
}

void require_length(std::span<const std::byte> code, size_t bytes, int64_t count) {
  if (code.size() != bytes)
    throw CommError(CommError::Kind::corrupt, -1,
                    fmt::format("encoded vector of {} values: got {} bytes; expected {}", count, code.size(), bytes));
}

void fail_corrupt(std::string_view what) {
  throw CommError(CommError::Kind::corrupt, -1, fmt::format("damaged encoded vector: {}", what));
}

size_t NarrowCompressor::encode(std::byte* code, const void* x, int64_t count, DType dtype, const RandomKey& draw,
                                const device::Stream& stream) const {
  if (dtype == DType::f32) {
    encode_floats(code, static_cast<const float*>(x), count, draw, stream);
  } else {
    float* narrow = scratch<float, NarrowCompressor>(static_cast<size_t>(count));
    kernel::cast(narrow, DType::f32, x, dtype, count, stream);
    encode_floats(code, narrow, count, draw, stream);
  }
  return bytes_of(count);
}

void NarrowCompressor::decode(void* y, WriteMode into, std::span<const std::byte> code, int64_t count, DType dtype,
                              const RandomKey&, const device::Stream& stream) const {
  require_length(code, bytes_of(count), count);
  if (dtype == DType::f32) return decode_floats(static_cast<float*>(y), into, code.data(), count, stream);
  float* narrow = scratch<float, NarrowCompressor>(static_cast<size_t>(count));
  decode_floats(narrow, WriteMode::overwrite, code.data(), count, stream);
  if (into == WriteMode::overwrite) return kernel::cast(y, dtype, narrow, DType::f32, count, stream);
  void* wide = scratch<double, NarrowCompressor>(static_cast<size_t>(count));
  kernel::cast(wide, dtype, narrow, DType::f32, count, stream);
  kernel::write_values(y, into, wide, count, dtype, stream);
}

}  // namespace esp::sync
