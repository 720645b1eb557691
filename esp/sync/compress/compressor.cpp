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
    throw UsageError(fmt::format("{} values to compress: up to 4294967295 go into one code", count));
}

void require_length(std::span<const std::byte> code, size_t bytes, int64_t count) {
  if (code.size() != bytes)
    throw CommError(CommError::Kind::corrupt, -1,
                    fmt::format("a code of {} bytes for {} values: {} were due", code.size(), count, bytes));
}

void damaged(std::string_view what) {
  throw CommError(CommError::Kind::corrupt, -1, fmt::format("a damaged code: {}", what));
}

size_t NarrowCompressor::encode(std::byte* code, const void* x, int64_t count, DType dtype, const Draw& draw,
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

void NarrowCompressor::decode(void* y, Into into, std::span<const std::byte> code, int64_t count, DType dtype,
                              const Draw&, const device::Stream& stream) const {
  require_length(code, bytes_of(count), count);
  if (dtype == DType::f32) return decode_floats(static_cast<float*>(y), into, code.data(), count, stream);
  float* narrow = scratch<float, NarrowCompressor>(static_cast<size_t>(count));
  decode_floats(narrow, Into::overwrite, code.data(), count, stream);
  if (into == Into::overwrite) return kernel::cast(y, dtype, narrow, DType::f32, count, stream);
  void* wide = scratch<double, NarrowCompressor>(static_cast<size_t>(count));
  kernel::cast(wide, dtype, narrow, DType::f32, count, stream);
  kernel::put_values(y, into, wide, count, dtype, stream);
}

}  // namespace esp::sync
