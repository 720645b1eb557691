// Column sums of a tile. The kAcross threads in x process one pack of columns each. The kDown threads in y process
// different rows.
#pragma once

#include "esp/kernel/cuda/types.cuh"

namespace esp::kernel::cuda {

inline constexpr int kAcross = 32, kDown = 8;

// Adds `mine` over the kDown threads, in a fixed order. Calls put(column of the tile, sum) in one thread per column.
// All threads of the block must call it. Later calls may use the same `partials`.
template <int N, typename A, typename F>
__device__ __forceinline__ void sum_down(const A (&mine)[N], A (&partials)[kDown][kAcross * N], F&& put) {
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; ++k) partials[threadIdx.y][threadIdx.x * N + k] = mine[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y * kAcross + threadIdx.x); i < kAcross * N; i += kAcross * kDown) {
    A total = 0;
#pragma unroll
    for (int y = 0; y < kDown; ++y) total += partials[y][i];
    put(i, total);
  }
}

}  // namespace esp::kernel::cuda
