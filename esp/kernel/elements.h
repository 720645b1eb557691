// Reduction operations on two values (sum, prod, min, max), and dispatch from a run-time dtype and op to compile-time
// types.
//
// 16-bit types accumulate in float. Integers wrap modulo 2^bits. min and max propagate the first NaN in the order of
// combination. If one operand is −0 and the other +0, they return the second operand. Results are bit-identical on all
// instruction sets, except that the payload of a NaN sum or product depends on the CPU.
#pragma once

#include <cstdint>
#include <type_traits>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/base/half.h"
#include "esp/kernel/reduce.h"

namespace esp::kernel {

template <typename T>
inline constexpr bool is_half = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <typename T>
using Accumulator = std::conditional_t<is_half<T>, float, T>;

template <ReduceOp op, typename A>
inline A combine(A a, A b) {
  if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    if constexpr (std::is_floating_point_v<A>)
      if (a != a) return a;
    return (op == ReduceOp::min ? a < b : a > b) ? a : b;
  } else if constexpr (std::is_integral_v<A>) {
    auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<A>(op == ReduceOp::prod ? x * y : x + y);
  } else {
    return op == ReduceOp::prod ? a * b : a + b;
  }
}

// Calls f(std::type_identity<T>{}) with the C++ type of `dtype`.
template <typename F>
void with_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::bf16:
      return f(std::type_identity<BFloat16>{});
    case DType::f16:
      return f(std::type_identity<Float16>{});
    case DType::i64:
      return f(std::type_identity<int64_t>{});
    case DType::i32:
      return f(std::type_identity<int32_t>{});
    case DType::i16:
      return f(std::type_identity<int16_t>{});
    case DType::i8:
      return f(std::type_identity<int8_t>{});
    case DType::u8:
      return f(std::type_identity<uint8_t>{});
  }
  ESP_CHECK(false, "dtype: got the enum value {}; expected an esp::DType", static_cast<int>(dtype));
}

// Calls f(std::integral_constant<ReduceOp, op>{}). For avg it passes sum.
template <typename F>
void with_op(ReduceOp op, F&& f) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return f(std::integral_constant<ReduceOp, ReduceOp::sum>{});
    case ReduceOp::prod:
      return f(std::integral_constant<ReduceOp, ReduceOp::prod>{});
    case ReduceOp::min:
      return f(std::integral_constant<ReduceOp, ReduceOp::min>{});
    case ReduceOp::max:
      return f(std::integral_constant<ReduceOp, ReduceOp::max>{});
  }
  ESP_CHECK(false, "reduce op: got the enum value {}; expected an esp::kernel::ReduceOp", static_cast<int>(op));
}

}  // namespace esp::kernel
