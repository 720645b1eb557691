// Kernels that keep rows in registers: R threads share a row, each with up to P packs. Row sums have a fixed order.
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

// Replaces K values by their sums over the R threads of a row. All threads of the block must call it. `partials` is
// shared memory with one element per warp and value. No other sum of the kernel may use the same `partials`.
template <int R, int K, typename A>
__device__ __forceinline__ void row_sums(A (&values)[K], A* partials) {
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = warp_sum(values[k]);
  if constexpr (R > 32) {
    const int warp = static_cast<int>(threadIdx.x) / 32, first = static_cast<int>(threadIdx.x) / R * (R / 32);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int k = 0; k < K; ++k) partials[warp * K + k] = values[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      A total = 0;
#pragma unroll
      for (int w = 0; w < R / 32; ++w) total += partials[(first + w) * K + k];
      values[k] = total;
    }
  }
}

template <int R>
inline constexpr int kRowThreads = R < kThreads ? kThreads : R;  // threads per block
template <int R>
inline constexpr int kRowsPerBlock = kRowThreads<R> / R;

// Calls f(R, P) with integral constants that suit rows of `packs` packs. Returns false if the rows are too long for
// registers.
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
