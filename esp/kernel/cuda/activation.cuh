// Activations and their derivatives in fp32 (fp64 for f64), with a relative error of about 2^-21.
#pragma once

#include "esp/kernel/activation.h"
#include "esp/kernel/activation_math.h"
#include "esp/kernel/cuda/types.cuh"

namespace esp::kernel::cuda {

__device__ __forceinline__ float reciprocal(float x) {
  return __fdividef(1.0f, x);  // 0 for x ≥ 2^126, which is correct for a sigmoid
}
__device__ __forceinline__ double reciprocal(double x) {
  return 1 / x;
}
__device__ __forceinline__ float exponential(float x) {
  return expf(x);
}
__device__ __forceinline__ double exponential(double x) {
  return exp(x);
}

template <typename A>
__device__ __forceinline__ A sigmoid_of(A x) {
  return reciprocal(1 + exponential(-x));
}

template <typename A>
__device__ __forceinline__ A normal_cdf(A x) {  // cumulative distribution function of the normal distribution
  constexpr A kHalfRoot = static_cast<A>(0.70710678118654752440);
  if constexpr (sizeof(A) == 8) {
    return 0.5 * erfc(-x * kHalfRoot);
  } else {
    return 0.5f * erfcf(-x * kHalfRoot);
  }
}

template <Activation activation, typename A>
__device__ __forceinline__ A activate(A x) {
  if constexpr (activation == Activation::relu) {
    return x < 0 ? A{0} : x;
  } else if constexpr (activation == Activation::gelu) {
    return x * sigmoid_of(x * (static_cast<A>(kGelu1) + static_cast<A>(kGelu3) * x * x));
  } else if constexpr (activation == Activation::gelu_erf) {
    return x * normal_cdf(x);
  } else if constexpr (activation == Activation::silu) {
    return x * sigmoid_of(x);
  } else if constexpr (activation == Activation::tanh) {
    return tanh(x);
  } else {
    return x;
  }
}

template <Activation activation, typename A>
__device__ __forceinline__ A derivative_of(A x) {
  if constexpr (activation == Activation::relu) {
    return x <= 0 ? A{0} : A{1};
  } else if constexpr (activation == Activation::gelu) {
    constexpr A k1 = static_cast<A>(kGelu1), k3 = static_cast<A>(kGelu3);
    const A v = x * (k1 + k3 * x * x), s = sigmoid_of(v);
    return s + x * (k1 + 3 * k3 * x * x) * s * sigmoid_of(-v);
  } else if constexpr (activation == Activation::gelu_erf) {
    constexpr A kDensity = static_cast<A>(0.39894228040143267794);
    return normal_cdf(x) + x * (kDensity * exponential(A(-0.5) * x * x));
  } else if constexpr (activation == Activation::silu) {
    const A s = sigmoid_of(x);
    return s + x * s * sigmoid_of(-x);
  } else if constexpr (activation == Activation::tanh) {
    const A c = cosh(x);
    return reciprocal(c * c);
  } else {
    return A{1};
  }
}

// Computes value and derivative together. For 16-bit results one hardware exponential is accurate enough (2^-17). All
// kernels with 16-bit results use this function, so recomputed values are bit-identical.
template <Activation kind, bool kShort, typename A>
__device__ __forceinline__ void activate_with_derivative(A x, A& value, A& derivative) {
  if constexpr (kShort && (kind == Activation::gelu || kind == Activation::silu)) {
    constexpr A k1 = static_cast<A>(kGelu1), k3 = static_cast<A>(kGelu3);
    constexpr bool kGelu = kind == Activation::gelu;
    const A square = x * x, v = kGelu ? x * (k1 + k3 * square) : x;
    const A e = __expf(fminf(-v, 80.0f)), s = __fdividef(1.0f, 1.0f + e);  // s = sigmoid(v), and e·s = sigmoid(−v)
    value = x * s;
    derivative = s + (kGelu ? x * (k1 + 3 * k3 * square) : x) * s * (e * s);
  } else {
    value = activate<kind>(x);
    derivative = derivative_of<kind>(x);
  }
}

}  // namespace esp::kernel::cuda
