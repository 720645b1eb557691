#include "esp/kernel/stochastic_rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace esp::kernel::ref {

void stochastic_block_encode(int8_t* codes, const float* x, const float* u, int64_t count, float scale, float top) {
  for (int64_t i = 0; i < count; ++i) {
    const float steps = std::clamp(x[i] / scale, -top, top), down = std::floor(steps);
    codes[i] = static_cast<int8_t>(down + (u[i] < steps - down ? 1.0f : 0.0f));
  }
}

void qsgd_encode_values(uint16_t* codes, const float* x, const float* u, int64_t count, float steps_per_unit,
                        int64_t levels, int sign_bit) {
  const auto top = static_cast<float>(levels);
  for (int64_t i = 0; i < count; ++i) {
    const float steps = std::min(std::abs(x[i]) * steps_per_unit, top), down = std::floor(steps);
    const auto level = static_cast<int>(down + (u[i] < steps - down ? 1.0f : 0.0f));
    codes[i] = static_cast<uint16_t>(level | (x[i] < 0 ? 1 << sign_bit : 0));
  }
}

uint16_t qsgd_decode_values(float* y, WriteMode into, const uint16_t* codes, int64_t count, float unit, int sign_bit) {
  uint16_t highest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto level = static_cast<uint16_t>(codes[i] & ((1 << sign_bit) - 1));
    highest = std::max(highest, level);
    const float size = static_cast<float>(level) * unit;
    put(y[i], codes[i] >> sign_bit & 1 ? -size : size, into);
  }
  return highest;
}

void natural_encode_values(uint8_t* exponents, uint8_t* signs, const float* x, const float* u, int64_t count) {
  std::memset(signs, 0, static_cast<size_t>((count + 7) / 8));
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t exponent = bits >> 23 & 255, rest = bits & 0x7fffff;
    const bool up = exponent < 254 && u[i] < static_cast<float>(rest) * 0x1p-23f;
    exponents[i] = static_cast<uint8_t>(exponent + up);
    signs[i / 8] |= static_cast<uint8_t>((bits >> 31) << i % 8);
  }
}

void natural_decode_values(float* y, WriteMode into, const uint8_t* exponents, const uint8_t* signs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t sign = signs[i / 8] >> i % 8 & 1;
    put(y[i], std::bit_cast<float>(sign << 31 | uint32_t{exponents[i]} << 23), into);
  }
}

}  // namespace esp::kernel::ref
