// Adam on a pack of elements: all buffers are read once and written once, the arithmetic between is in registers.
// Moments move towards the gradient by (1 − β) of the difference, as on the CPU.
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
struct Rates {
  A toward1, toward2, rate, root, eps, grad_scale, decay, l2;
};

template <typename A>
__host__ __device__ Rates<A> rates_of(const AdamStep& s, double lr, double grad_scale, int64_t t) {
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
__device__ __forceinline__ A adam_update(const Rates<A>& r, A w, A grad, A& m, A& v) {
  const A g = r.l2 * w + grad * r.grad_scale;
  m += r.toward1 * (g - m);
  v += r.toward2 * (g * g - v);
  return w - (r.decay * w + divided(r.rate * m, root_of(v) * r.root + r.eps));
}

template <typename T, int N>
struct Adam {
  using A = Accumulator<T>;
  struct In {
    Pack<A, N> w, m, v;
    Pack<T, N> g;
  };
  A *master, *m, *v;
  T* weights;
  const T* grad;
  Rates<A> rates;
  __device__ In load(int64_t i) const {
    return {load_pack<N>(master + i * N), load_pack<N>(m + i * N), load_pack<N>(v + i * N), load_pack<N>(grad + i * N)};
  }
  __device__ void apply(int64_t i, In& in) const {
    Pack<T, N> stored;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      in.w.at[k] = adam_update(rates, in.w.at[k], widen(in.g.at[k]), in.m.at[k], in.v.at[k]);
      stored.at[k] = narrow<T>(in.w.at[k]);
    }
    store_pack<N>(master + i * N, in.w);
    store_pack<N>(m + i * N, in.m);
    store_pack<N>(v + i * N, in.v);
    if (weights) store_pack<N>(weights + i * N, stored);
  }
};

}  // namespace esp::kernel::cuda
