// Element types in device code: dispatch from a run-time dtype, accumulator types, and conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/device/cuda/check.h"
#include "esp/device/cuda/queue.h"

namespace esp::kernel::cuda {

using device::handle_of;
using device::queue_of;

template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
__device__ __forceinline__ Accumulator<T> widen(T x) {
  return static_cast<Accumulator<T>>(x);
}
template <typename T>
__device__ __forceinline__ T narrow(Accumulator<T> x) {  // rounds to nearest even
  return static_cast<T>(x);
}

// Calls f(std::type_identity<T>{}) with the device type of a floating `dtype`.
template <typename F>
void with_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::bf16:
      return f(std::type_identity<__nv_bfloat16>{});
    case DType::f16:
      return f(std::type_identity<__half>{});
    default:
      ESP_CHECK(false, "kernel argument: got dtype {}; expected a floating-point type", name_of(dtype));
  }
}

}  // namespace esp::kernel::cuda
