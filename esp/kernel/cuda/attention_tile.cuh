// Tiles of 32 rows in shared memory and their two GEMMs, for eight warps of 32 lanes.
//
// Warp w processes rows 4w … 4w + 3 of the first tile, and lane l processes row l of the second tile. The score of a
// pair of rows is therefore one register of one lane. A sum over the rows of the second tile is a warp reduction. The
// elements of a result row are spread over the lanes.
#pragma once

#include "esp/kernel/attention.h"
#include "esp/kernel/cuda/philox.cuh"
#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {

inline constexpr int kTile = 32, kOwn = 4, kTileThreads = 256;

__host__ __device__ inline int tile_stride(int head_dim) {
  return head_dim + 1;  // one element of padding, so that rows start in different shared-memory banks
}

// tile[r][d] = x(b, first + r, h, d). Rows from `count` on are set to zero.
template <typename T>
__device__ void load_tile(Accumulator<T>* tile, const T* x, int64_t token, int64_t first, int64_t count, int head_dim) {
  const int stride = tile_stride(head_dim);
  for (int r = threadIdx.x / 32; r < kTile; r += kTileThreads / 32)
    for (int d = threadIdx.x % 32; d < head_dim; d += 32)
      tile[r * stride + d] = first + r < count ? widen(x[(first + r) * token + d]) : Accumulator<T>{0};
}

// score[i] = (row 4w + i of the first tile) · (row l of the second tile), for warp w and lane l.
template <typename A>
__device__ __forceinline__ void dot_tiles(A (&score)[kOwn], const A* own, const A* other, int head_dim) {
  const int stride = tile_stride(head_dim);
  const A *mine = own + (threadIdx.x / 32) * kOwn * stride, *theirs = other + (threadIdx.x % 32) * stride;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) score[i] = 0;
#pragma unroll 8
  for (int d = 0; d < head_dim; ++d) {
    const A value = theirs[d];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) score[i] += mine[i * stride + d] * value;
  }
}

// sums[i][c] += Σ_j (weight[i] of lane j) · other[j][lane + 32c]
template <int C, typename A>
__device__ __forceinline__ void add_weighted(A (&sums)[kOwn][C], const A (&weight)[kOwn], const A* other,
                                             int head_dim) {
  const int stride = tile_stride(head_dim), lane = threadIdx.x % 32;
#pragma unroll 4
  for (int j = 0; j < kTile; ++j) {
    A of[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) of[i] = __shfl_sync(0xffffffffu, weight[i], j);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const A value = lane + 32 * c < head_dim ? other[j * stride + lane + 32 * c] : A{0};
#pragma unroll
      for (int i = 0; i < kOwn; ++i) sums[i][c] += of[i] * value;
    }
  }
}

__device__ __forceinline__ int64_t keys_seen(const AttentionShape& s, int64_t b, int64_t i) {
  int64_t n = s.key_lengths ? min(static_cast<int64_t>(s.key_lengths[b]), s.num_keys) : s.num_keys;
  if (s.causal) n = min(n, i + s.causal_offset + 1);
  return max(n, int64_t{0});
}

// Dropout factor of probability (b, h, i, j): 1/(1 − rate) if it is kept, else 0.
template <typename A>
__device__ __forceinline__ A kept(const AttentionShape& s, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (s.dropout == 0) return A{1};
  const int64_t head = (s.first_batch + b) * (s.all_heads ? s.all_heads : s.heads) + s.first_head + h;
  const int64_t row = head * (s.all_queries ? s.all_queries : s.num_queries) + s.first_query + i;
  const int64_t index = row * (s.all_keys ? s.all_keys : s.num_keys) + s.first_key + j;
  const uint4 words = Philox(s.key.seed, s.key.purpose).block(static_cast<uint64_t>(index) / 4);
  return word_of(words, static_cast<int>(index % 4)) >= s.dropout * 0x1p32 ? static_cast<A>(1 / (1 - s.dropout)) : A{0};
}

__device__ __forceinline__ float exp_score(float x) {
  return expf(x);
}
__device__ __forceinline__ double exp_score(double x) {
  return exp(x);
}
__device__ __forceinline__ float log_sum(float x) {
  return logf(x);
}
__device__ __forceinline__ double log_sum(double x) {
  return log(x);
}

// Calls f(std::integral_constant<int, C>{}) with a C ≥ head_dim/32.
template <typename F>
void with_columns(int64_t head_dim, F&& f) {
  if (head_dim <= 32) return f(std::integral_constant<int, 1>{});
  if (head_dim <= 64) return f(std::integral_constant<int, 2>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
}

}  // namespace esp::kernel::cuda
