// Online softmax: one thread block computes the maximum of a row and its sum of exponentials in one pass.
#pragma once

#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {

// exp(x) is computed as 2^(x·log₂e): one FMA and one instruction of the special function unit.
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

// sum = Σ exp(x − top) over the elements added so far. top is the largest of them, or −∞ at the start. A NaN element
// makes the sum NaN.
template <typename A>
struct SoftmaxSum {
  A top = -INFINITY, sum = 0;

  // Adds N elements. The earlier sum is rescaled only once.
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

// Probability of an element: exp(x − top)·inverse. scaled_top is top·log₂e.
template <typename A>
__device__ __forceinline__ A probability_of(A x, A scaled_top, A inverse) {
  return power_of_two(fma(x, kLog2E<A>, -scaled_top)) * inverse;
}

// Merges the sums of all threads of the block. Every thread gets the result. `partials` has room for two values per
// warp.
template <int kBlock, typename A>
__device__ SoftmaxSum<A> merge_sums(SoftmaxSum<A> mine, A (*partials)[kBlock / 32]) {
  SoftmaxSum<A> all;
  const A highest = warp_max(mine.top);
  if (threadIdx.x % 32 == 0) partials[0][threadIdx.x / 32] = highest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kBlock / 32; ++w) all.top = fmax(all.top, partials[0][w]);
  // A thread with top −∞ had no elements, or only −∞ and NaN. Its sum is 0 or NaN and must not be rescaled.
  A sum[1] = {mine.top == A(-INFINITY) ? mine.sum
                                       : mine.sum * power_of_two(mine.top * kLog2E<A> - all.top * kLog2E<A>)};
  row_sums<kBlock>(sum, partials[1]);
  all.sum = sum[0];
  return all;
}

// Loops over a row of `count` elements with all threads of the block: first whole packs, then the rest one by one.
// Calls f(std::integral_constant<int, N>{}, first element), with N = 1 for the rest. If N > 1, the row must be 16-byte
// aligned.
template <int kBlock, int N, typename I, typename F>
__device__ __forceinline__ void for_row_packs(I count, F&& f) {
  const I body = count / N * N, first = static_cast<I>(threadIdx.x);
#pragma unroll 4
  for (I c = first * N; c < body; c += kBlock * N) f(std::integral_constant<int, N>{}, c);
  if constexpr (N > 1)
    if (body + first < count) f(std::integral_constant<int, 1>{}, body + first);
}

}  // namespace esp::kernel::cuda
