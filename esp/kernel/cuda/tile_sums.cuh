// Column sums of a tile: kAcross threads side by side, each with a pack of columns, and kDown threads below each other
// with different rows.
#pragma once

#include "esp/kernel/cuda/types.cuh"

namespace esp::kernel::cuda {

inline constexpr int kAcross = 32, kDown = 8;

// put(column of the tile, its sum), by one thread each, always added in the same order. All threads of the block take
// part; `meet` may be used again by a later call.
template <int N, typename A, typename F>
__device__ __forceinline__ void sum_down(const A (&mine)[N], A (&meet)[kDown][kAcross * N], F&& put) {
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; ++k) meet[threadIdx.y][threadIdx.x * N + k] = mine[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * kAcross + threadIdx.x); i < kAcross * N; i += kAcross * kDown) {
    A total = 0;
#pragma unroll
    for (int y = 0; y < kDown; ++y) total += meet[y][i];
    put(i, total);
  }
}

}  // namespace esp::kernel::cuda
