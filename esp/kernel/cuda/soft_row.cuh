// Maximum and sum of exponentials of a row, in one pass by one block (online softmax).
#pragma once

#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {

// Exponentials are powers of two of scaled scores: one fused multiply-add and one instruction of the special unit.
template <typename A>
inline constexpr A kLog2E = static_cast<A>(1.44269504088896340736);

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ double power_of_two(double x) {
  return exp2(x);
}

// Σ exp(x − top) over what was seen, `top` the largest of it; nothing seen: top −∞. A NaN makes the sum a NaN.
template <typename A>
struct SoftSum {
  A top = -INFINITY, sum = 0;

  // N elements at once: one rescaling for all.
  template <int N, typename T>
  __device__ __forceinline__ void take(const Pack<T, N>& in) {
    A highest = widen(in.at[0]);
#pragma unroll
    for (int k = 1; k < N; ++k) highest = fmax(highest, widen(in.at[k]));
    highest = fmax(top, highest);
    if (highest == A(-INFINITY)) {
#pragma unroll
      for (int k = 0; k < N; ++k) sum += A{0} * (widen(in.at[k]) == A(-INFINITY) ? A{0} : widen(in.at[k]));
      return;
    }
    const A scaled = highest * kLog2E<A>;
    A more = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) more += power_of_two(fma(widen(in.at[k]), kLog2E<A>, -scaled));
    sum = sum * power_of_two(top * kLog2E<A> - scaled) + more;
    top = highest;
  }
  __device__ __forceinline__ A log_sum() const {
    return top + log(sum);
  }
};

// What probability an element has: exp(x − top)·inverse, with top·log₂e given.
template <typename A>
__device__ __forceinline__ A share_of(A x, A scaled_top, A inverse) {
  return power_of_two(fma(x, kLog2E<A>, -scaled_top)) * inverse;
}

// Over all threads of the block; every thread gets the whole. `meet` has room for 2 values per warp.
template <int kBlock, typename A>
__device__ SoftSum<A> merged(SoftSum<A> mine, A (*meet)[kBlock / 32]) {
  SoftSum<A> all;
  const A highest = warp_max(mine.top);
  if (threadIdx.x % 32 == 0) meet[0][threadIdx.x / 32] = highest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kBlock / 32; ++w) all.top = fmax(all.top, meet[0][w]);
  // A thread that saw nothing has 0 here, or a NaN that stays one.
  A sum[1] = {mine.top == A(-INFINITY) ? mine.sum
                                       : mine.sum * power_of_two(mine.top * kLog2E<A> - all.top * kLog2E<A>)};
  row_sums<kBlock>(sum, meet[1]);
  all.sum = sum[0];
  return all;
}

// A block's walk over a row of `count`: whole packs where the row begins on sixteen bytes, the rest one by one.
// f(std::integral_constant<int, N>{}, first element).
template <int kBlock, int N, typename I, typename F>
__device__ __forceinline__ void walk_row(I count, F&& f) {
  const I body = count / N * N, first = static_cast<I>(threadIdx.x);
#pragma unroll 4
  for (I c = first * N; c < body; c += kBlock * N) f(std::integral_constant<int, N>{}, c);
  if constexpr (N > 1)
    if (body + first < count) f(std::integral_constant<int, 1>{}, body + first);
}

}  // namespace esp::kernel::cuda
