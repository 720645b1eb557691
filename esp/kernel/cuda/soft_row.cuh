// The largest element of a row and the sum of exponentials under it, in one reading by one block.
#pragma once

#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {

__device__ __forceinline__ float exp_of(float x) {
  return exp2f(x * 1.44269504088896341f);
}
__device__ __forceinline__ double exp_of(double x) {
  return exp(x);
}

// Σ exp(x − top) over what was seen; nothing seen: top −∞.
template <typename A>
struct SoftSum {
  A top = -INFINITY, sum = 0;

  __device__ __forceinline__ void merge(A other_top, A other_sum) {
    if (other_top == A(-INFINITY)) {
      sum += other_sum;  // nothing, unless it is a NaN, which stays
    } else if (top >= other_top) {
      sum += other_sum * exp_of(other_top - top);
    } else {
      sum = (top == A(-INFINITY) ? sum : sum * exp_of(top - other_top)) + other_sum;
      top = other_top;
    }
  }
  // N elements at once: one rescaling for all.
  template <int N, typename T>
  __device__ __forceinline__ void take(const Pack<T, N>& in) {
    A highest = top;
#pragma unroll
    for (int k = 0; k < N; ++k) highest = widen(in.at[k]) > highest ? widen(in.at[k]) : highest;
    A more = 0;
#pragma unroll
    for (int k = 0; k < N; ++k)
      more += highest == A(-INFINITY) ? A{0} * widen(in.at[k]) : exp_of(widen(in.at[k]) - highest);
    sum = (top == highest || sum == 0 ? sum : sum * exp_of(top - highest)) + more;
    top = highest;
  }
};

// Over all threads of the block; every thread gets the whole. `meet` has room for 2 values per warp.
template <int kBlock, typename A>
__device__ SoftSum<A> merged(SoftSum<A> mine, A (*meet)[kBlock / 32]) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const A top = __shfl_xor_sync(0xffffffffu, mine.top, offset), sum = __shfl_xor_sync(0xffffffffu, mine.sum, offset);
    mine.merge(top, sum);
  }
  if (threadIdx.x % 32 == 0) {
    meet[0][threadIdx.x / 32] = mine.top;
    meet[1][threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  SoftSum<A> all;
  for (int w = 0; w < kBlock / 32; ++w) all.merge(meet[0][w], meet[1][w]);
  return all;
}

// A block's walk over a row of `count`: whole packs where the row begins on sixteen bytes, the rest one by one.
// f(std::integral_constant<int, N>{}, first element).
template <int kBlock, int N, typename F>
__device__ __forceinline__ void walk_row(int64_t count, F&& f) {
  const int64_t body = count / N * N;
#pragma unroll 4
  for (int64_t c = threadIdx.x * N; c < body; c += kBlock * N) f(std::integral_constant<int, N>{}, c);
  if constexpr (N > 1)
    if (body + threadIdx.x < count) f(std::integral_constant<int, 1>{}, body + threadIdx.x);
}

}  // namespace esp::kernel::cuda
