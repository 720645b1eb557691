#include "esp/kernel/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {
namespace {

// Where value i lies in an encoded run of `count`.
struct Place {
  size_t scale, code;
  int shift;  // within the byte
};
Place place_of(int64_t i, int64_t count, const BlockCode& code) {
  const int64_t per_byte = 8 / code.bits, block = i / code.block, within = i % code.block;
  const int64_t num_blocks = (count + code.block - 1) / code.block,
                block_bytes = (code.block + per_byte - 1) / per_byte;
  return {static_cast<size_t>(4 * block), static_cast<size_t>(4 * num_blocks + block * block_bytes + within / per_byte),
          code.bits == 4 ? static_cast<int>(within % 2) * 4 : 0};
}

float value_at(const uint8_t* encoded, int64_t i, int64_t count, const BlockCode& code) {
  const Place place = place_of(i, count, code);
  float scale;
  std::memcpy(&scale, encoded + place.scale, sizeof scale);
  const int bits = encoded[place.code] >> place.shift & (code.bits == 4 ? 15 : 255);
  const int top = 1 << (code.bits - 1);
  return static_cast<float>((bits ^ top) - top) * scale;
}

}  // namespace

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockCode& code) {
  auto* bytes = static_cast<uint8_t*>(encoded);
  const auto top = static_cast<float>((1 << (code.bits - 1)) - 1);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    auto at = [&](int64_t i) { return static_cast<float>(static_cast<Accumulator<T>>(static_cast<const T*>(x)[i])); };
    for (int64_t begin = 0; begin < count; begin += code.block) {
      const int64_t end = std::min(begin + code.block, count);
      uint32_t largest = 0;  // as bits, magnitudes order like numbers, and what is not finite lies above
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(at(i)) & 0x7fffffffu);
      const float scale =
          largest < 0x7f800000u ? std::bit_cast<float>(largest) / top : std::numeric_limits<float>::quiet_NaN();
      std::memcpy(bytes + place_of(begin, count, code).scale, &scale, sizeof scale);
      for (int64_t i = begin; i < end; ++i) {
        const Place place = place_of(i, count, code);
        const int q = scale > 0 ? static_cast<int>(std::clamp(std::nearbyint(at(i) / scale), -top, top)) : 0;
        if (place.shift == 0) bytes[place.code] = 0;
        bytes[place.code] |= static_cast<uint8_t>((code.bits == 4 ? q & 15 : q & 255) << place.shift);
      }
    }
  });
}

void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockCode& code) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i)
      static_cast<T*>(y)[i] = static_cast<T>(value_at(static_cast<const uint8_t*>(encoded), i, count, code));
  });
}

void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockCode& code) {
  for (int64_t i = 0; i < count; ++i) sums[i] += value_at(static_cast<const uint8_t*>(encoded), i, count, code);
}

}  // namespace esp::kernel::ref
