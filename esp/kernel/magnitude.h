// Magnitudes of floating-point numbers as integers. The bit patterns have the same order as the numbers; non-finite
// values are above all others.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "esp/base/check.h"
#include "esp/base/dtype.h"

namespace esp::kernel {

inline uint32_t magnitude_bits(float v) {
  return std::bit_cast<uint32_t>(v) & 0x7fffffffu;
}
inline uint64_t magnitude_bits(double v) {
  return std::bit_cast<uint64_t>(v) & 0x7fffffffffffffffu;
}

// Calls f(std::type_identity<T>{}) with float or double.
template <typename F>
void with_real(DType dtype, F&& f) {
  if (dtype == DType::f64) return f(std::type_identity<double>{});
  ESP_CHECK(dtype == DType::f32, "kernel argument: got dtype {}; expected f32 or f64", name_of(dtype));
  f(std::type_identity<float>{});
}

}  // namespace esp::kernel
