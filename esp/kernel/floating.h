// Floating-point element types: dispatch from a run-time dtype to a compile-time type, and addresses of elements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/base/half.h"
#include "esp/kernel/elements.h"

namespace esp::kernel {

// Calls f(std::type_identity<T>{}) with the C++ type of a floating `dtype`.
template <typename F>
void with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::bf16:
      return f(std::type_identity<BFloat16>{});
    case DType::f16:
      return f(std::type_identity<Float16>{});
    default:
      ESP_CHECK(false, "kernel argument: got dtype {}; expected a floating-point type", name_of(dtype));
  }
}

// Returns the accumulation type of `dtype` (the type of sums and statistics): f64 for f64, else f32.
inline DType accumulator_of(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

// Minimum elements per thread in elementwise kernels.
inline constexpr int64_t kElementGrain = 8192;

// Minimum rows per thread in kernels over rows of `width` elements.
inline int64_t row_grain(int64_t width) {
  return width >= kElementGrain ? 1 : (kElementGrain + width - 1) / std::max<int64_t>(width, 1);
}

// Address of element `index` of an array of `dtype`. Null stays null.
inline void* at(void* array, int64_t index, DType dtype) {
  return array ? static_cast<std::byte*>(array) + index * static_cast<int64_t>(size_of(dtype)) : nullptr;
}
inline const void* at(const void* array, int64_t index, DType dtype) {
  return array ? static_cast<const std::byte*>(array) + index * static_cast<int64_t>(size_of(dtype)) : nullptr;
}

}  // namespace esp::kernel
