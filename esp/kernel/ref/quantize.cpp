#include "esp/kernel/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {
namespace {

// Position of the encoded value i in an encoded buffer of `count` values.
struct EncodedPosition {
  size_t scale, value;
  int shift;  // bit offset within the byte
};
EncodedPosition position_of(int64_t i, int64_t count, const BlockFormat& format) {
  const int64_t per_byte = 8 / format.bits, block = i / format.block, within = i % format.block;
  const int64_t num_blocks = (count + format.block - 1) / format.block,
                block_bytes = (format.block + per_byte - 1) / per_byte;
  return {static_cast<size_t>(4 * block), static_cast<size_t>(4 * num_blocks + block * block_bytes + within / per_byte),
          format.bits == 4 ? static_cast<int>(within % 2) * 4 : 0};
}

float value_at(const uint8_t* encoded, int64_t i, int64_t count, const BlockFormat& format) {
  const EncodedPosition place = position_of(i, count, format);
  float scale;
  std::memcpy(&scale, encoded + place.scale, sizeof scale);
  const int bits = encoded[place.value] >> place.shift & (format.bits == 4 ? 15 : 255);
  const int top = 1 << (format.bits - 1);
  return static_cast<float>((bits ^ top) - top) * scale;
}

}  // namespace

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockFormat& format) {
  auto* bytes = static_cast<uint8_t*>(encoded);
  const auto top = static_cast<float>((1 << (format.bits - 1)) - 1);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto at = [&](int64_t i) { return static_cast<float>(static_cast<Accumulator<T>>(static_cast<const T*>(x)[i])); };
    for (int64_t begin = 0; begin < count; begin += format.block) {
      const int64_t end = std::min(begin + format.block, count);
      // The bit patterns of magnitudes have the same order as the numbers; non-finite values are the largest.
      uint32_t largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(at(i)) & 0x7fffffffu);
      const float scale =
          largest < 0x7f800000u ? std::bit_cast<float>(largest) / top : std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes + position_of(begin, count, format).scale, &scale, sizeof scale);
      for (int64_t i = begin; i < end; ++i) {
        const EncodedPosition place = position_of(i, count, format);
        const int q = scale > 0 ? static_cast<int>(std::clamp(std::nearbyint(at(i) / scale), -top, top)) : 0;
        if (place.shift == 0) bytes[place.value] = 0;
        bytes[place.value] |= static_cast<uint8_t>((format.bits == 4 ? q & 15 : q & 255) << place.shift);
      }
    }
  });
}

void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockFormat& format) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i)
      static_cast<T*>(y)[i] = static_cast<T>(value_at(static_cast<const uint8_t*>(encoded), i, count, format));
  });
}

void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockFormat& format) {
  for (int64_t i = 0; i < count; ++i) sums[i] += value_at(static_cast<const uint8_t*>(encoded), i, count, format);
}

}  // namespace esp::kernel::ref
