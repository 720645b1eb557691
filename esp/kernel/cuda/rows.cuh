// Rows in registers: R threads share a row, each with up to P packs; row sums in a fixed order.
#pragma once

#include <cstdint>

#include "esp/kernel/cuda/elements.cuh"

namespace esp::kernel::cuda {

template <typename A>
__device__ __forceinline__ A warp_sum(A value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
template <typename A>
__device__ __forceinline__ A warp_max(A value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const A other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  return value;
}

// Sums of K values over the R threads of a row; every thread gets them. `meet` is shared memory of one element per warp
// and value, used by no other sum of the kernel. All threads of the block take part.
template <int R, int K, typename A>
__device__ __forceinline__ void row_sums(A (&values)[K], A* meet) {
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = warp_sum(values[k]);
  if constexpr (R > 32) {
    const int warp = static_cast<int>(threadIdx.x) / 32, first = static_cast<int>(threadIdx.x) / R * (R / 32);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) meet[warp * K + k] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A total = 0;
#pragma unroll
      for (int w = 0; w < R / 32; ++w) total += meet[(first + w) * K + k];
      values[k] = total;
    }
  }
}

template <int R>
inline constexpr int kRowThreads = R < kThreads ? kThreads : R;  // of a block
template <int R>
inline constexpr int kRowsPerBlock = kRowThreads<R> / R;

// f(R, P) as integral constants for rows of `packs` packs; false when they are too long for registers.
template <typename F>
bool with_row_split(int64_t packs, F&& f) {
  auto with_packs = [&](auto threads) {
    switch (ceil_div(packs, threads())) {
      case 1:
        return f(threads, std::integral_constant<int, 1>{}), true;
      case 2:
        return f(threads, std::integral_constant<int, 2>{}), true;
      case 3:
        return f(threads, std::integral_constant<int, 3>{}), true;
      case 4:
        return f(threads, std::integral_constant<int, 4>{}), true;
      default:
        return false;
    }
  };
  if (packs <= 32 * 4) return with_packs(std::integral_constant<int, 32>{});
  if (packs <= 128 * 4) return with_packs(std::integral_constant<int, 128>{});
  return packs <= 512 * 4 && with_packs(std::integral_constant<int, 512>{});
}

}  // namespace esp::kernel::cuda
