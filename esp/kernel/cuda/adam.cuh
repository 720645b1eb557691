// Adam step for a pack of elements (a 16-byte vector). All buffers are read once and written once, and arithmetic is in
// registers. As on the CPU, a moment m is updated as m += (1 − β)·(g − m).
#pragma once

#include <cmath>

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/optimizer_step.h"

namespace esp::kernel::cuda {

__device__ __forceinline__ float divided(float a, float b) {
  return __fdividef(a, b);
}
__device__ __forceinline__ double divided(double a, double b) {
  return a / b;
}
__device__ __forceinline__ float root_of(float x) {
  return __fsqrt_rn(x);
}
__device__ __forceinline__ double root_of(double x) {
  return sqrt(x);
}

template <typename A>
struct AdamRates {
  A toward1, toward2, rate, root, eps, grad_scale, decay, l2;
};

template <typename A>
__host__ __device__ AdamRates<A> rates_of(const AdamStep& s, double lr, double grad_scale, int64_t t) {
  const double n = static_cast<double>(t);
  return {static_cast<A>(1 - s.beta1),
          static_cast<A>(1 - s.beta2),
          static_cast<A>(lr / (1 - pow(s.beta1, n))),
          static_cast<A>(1 / sqrt(1 - pow(s.beta2, n))),
          static_cast<A>(s.eps),
          static_cast<A>(grad_scale),
          static_cast<A>(s.decoupled ? lr * s.weight_decay : 0),
          static_cast<A>(s.decoupled ? 0 : s.weight_decay)};
}

template <typename A>
__device__ __forceinline__ A adam_update(const AdamRates<A>& r, A w, A grad, A& m, A& v) {
  const A g = r.l2 * w + grad * r.grad_scale;
  m += r.toward1 * (g - m);
  v += r.toward2 * (g * g - v);
  return w - (r.decay * w + divided(r.rate * m, root_of(v) * r.root + r.eps));
}

// Split master copy (split_master.h): joined() combines a bf16 value and the stored lower 16 bits to an fp32 value;
// lower_half() computes the lower 16 bits of an fp32 value.
__device__ __forceinline__ float joined(__nv_bfloat16 high, uint16_t low) {
  const uint32_t upper = __bfloat16_as_ushort(high) - (low > 0x8000u ? 1u : 0u);
  return __uint_as_float(upper << 16 | low);
}
__device__ __forceinline__ uint16_t lower_half(float x) {
  const uint32_t bits = __float_as_uint(x), rest = bits & 0xffffu, odd = bits >> 16 & 1u;
  return static_cast<uint16_t>(rest == 0x8000u ? 0x7fffu + 2 * odd : rest);
}

// If kSplitMaster is set, `master` holds the lower 16 bits of the master copy, and bf16 weights hold the upper ones.
// Otherwise `master` is a full master copy.
template <typename T, int N, bool kSplitMaster = false>
struct Adam {
  using A = Accumulator<T>;
  struct Inputs {
    Pack<A, N> w, m, v;
    Pack<T, N> g;
  };
  using Master = std::conditional_t<kSplitMaster, uint16_t, A>;
  Master* master;
  A *m, *v;
  T* weights;
  const T* grad;
  AdamRates<A> rates;
  __device__ Inputs load(int64_t i) const {
    Inputs in;
    in.m = load_pack<N>(m + i * N);
    in.v = load_pack<N>(v + i * N);
    in.g = load_pack<N>(grad + i * N);
    const Pack<Master, N> kept = load_pack<N>(master + i * N);
    if constexpr (kSplitMaster) {
      const Pack<T, N> high = load_pack<N>(weights + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) in.w.at[k] = joined(high.at[k], kept.at[k]);
    } else {
      in.w = kept;
    }
    return in;
  }
  __device__ void apply(int64_t i, Inputs& in) const {
    Pack<T, N> stored;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      in.w.at[k] = adam_update(rates, in.w.at[k], widen(in.g.at[k]), in.m.at[k], in.v.at[k]);
      stored.at[k] = narrow<T>(in.w.at[k]);
    }
    if constexpr (kSplitMaster) {
      Pack<Master, N> low;
#pragma unroll
      for (int k = 0; k < N; ++k) low.at[k] = lower_half(in.w.at[k]);
      store_pack<N>(master + i * N, low);
    } else {
      store_pack<N>(master + i * N, in.w);
    }
    store_pack<N>(m + i * N, in.m);
    store_pack<N>(v + i * N, in.v);
    if (weights) store_pack<N>(weights + i * N, stored);
  }
};

}  // namespace esp::kernel::cuda
