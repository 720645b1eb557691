// bf16 and fp16 as storage types: 16 bits that convert to and from float, rounding to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace esp {

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t x = std::bit_cast<uint32_t>(value);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
      // sets a mantissa bit: a NaN must stay a NaN after its low bits are cut
      bits = static_cast<uint16_t>((x >> 16) | 0x0040u);
    } else {
      bits = static_cast<uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value) : bits(from_float(value)) {}
  explicit operator float() const { return to_float(bits); }

  static uint16_t from_float(float value) {
    uint32_t x = std::bit_cast<uint32_t>(value);
    uint16_t sign = static_cast<uint16_t>((x >> 16) & 0x8000u);
    x &= 0x7fffffffu;
    if (x > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((x >> 13) & 0x3ffu));
    // overflow: values that round to more than 65504 become infinity
    if (x >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (x < 0x38800000u) {  // subnormal result: a float addition does the rounding
      float magnitude = std::bit_cast<float>(x) + 0.5f;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude) - 0x3f000000u));
    }
    uint32_t odd = (x >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((x - 0x38000000u + 0xfffu + odd) >> 13));
  }

  static float to_float(uint16_t half) {
    uint32_t sign = (static_cast<uint32_t>(half) & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
      float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
      return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
};

}  // namespace esp
