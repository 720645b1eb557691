// Attention forward and backward on tiles of 32 queries by 32 keys.
//
// Backward uses two kernels. The first computes dQ, with one block per 32 queries. The second computes dK and dV, with
// one block per 32 keys that loops over all queries and all heads of the group. Each sum is computed by one block in a
// fixed order, at the cost of computing the scores twice.
#include "esp/kernel/cuda/attention_tile.h"

#include "esp/kernel/cuda/attention_tile.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T, typename O>
struct ForwardTile {
  O* o;
  Accumulator<T>* lse;
  const T *q, *k, *v;
  AttentionShape s;
  bool merge_previous;
};

template <typename T, typename O, int C>
__global__ void __launch_bounds__(kTileThreads) forward_kernel(ForwardTile<T, O> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  const AttentionShape& s = a.s;
  const int D = static_cast<int>(s.head_dim), stride = tile_stride(D), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  A *q = reinterpret_cast<A*>(shared), *k = q + kTile * stride, *v = k + kTile * stride;
  const int64_t b = blockIdx.z, h = blockIdx.y, first = int64_t{blockIdx.x} * kTile, g = h / (s.heads / s.kv_heads);
  load_tile(q, a.q + b * s.q.batch + h * D, s.q.token, first, s.num_queries, D);
  A top[kOwn], sum[kOwn], out[kOwn][C] = {};
  int64_t seen[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i, row = (b * s.heads + h) * s.lse_row + query;
    seen[i] = query < s.num_queries ? keys_seen(s, b, query) : 0;
    top[i] = A(-INFINITY);
    sum[i] = 0;
    // The previous result enters the sum as one term: its maximum is lse and its weight is 1
    if (a.merge_previous && query < s.num_queries && a.lse[row] != A(-INFINITY)) {
      top[i] = a.lse[row];
      sum[i] = 1;
#pragma unroll
      for (int c = 0; c < C; ++c)
        if (lane + 32 * c < D)
          out[i][c] = static_cast<A>(a.o[b * s.o.batch + query * s.o.token + h * D + lane + 32 * c]);
    }
  }
  const int64_t last = keys_seen(s, b, min(first + kTile, s.num_queries) - 1);
  for (int64_t j = 0; j < last; j += kTile) {
    __syncthreads();
    load_tile(k, a.k + b * s.k.batch + g * D, s.k.token, j, s.num_keys, D);
    load_tile(v, a.v + b * s.v.batch + g * D, s.v.token, j, s.num_keys, D);
    __syncthreads();
    A score[kOwn];
    dot_tiles(score, q, k, D);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool visible = j + lane < seen[i];
      score[i] = visible ? score[i] * static_cast<A>(s.scale) : A(-INFINITY);
      const A highest = max(top[i], warp_max(score[i]));
      const A p = visible ? exp_score(score[i] - highest) : A{0};
      const A shrink = top[i] == A(-INFINITY) ? A{0} : exp_score(top[i] - highest);
      sum[i] = sum[i] * shrink + warp_sum(p);
      top[i] = highest;
#pragma unroll
      for (int c = 0; c < C; ++c) out[i][c] *= shrink;
      score[i] = visible ? p * kept<A>(s, b, h, first + warp * kOwn + i, j + lane) : A{0};
    }
    add_weighted(out, score, v, D);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    if (query >= s.num_queries) continue;
    const A inverse = sum[i] == 0 ? A{0} : A{1} / sum[i];
#pragma unroll
    for (int c = 0; c < C; ++c)
      if (lane + 32 * c < D)
        a.o[b * s.o.batch + query * s.o.token + h * D + lane + 32 * c] = static_cast<O>(out[i][c] * inverse);
    if (lane == 0) a.lse[(b * s.heads + h) * s.lse_row + query] = sum[i] == 0 ? A(-INFINITY) : top[i] + log_sum(sum[i]);
  }
}

template <typename T, typename G>
struct BackwardTile {
  G *dq, *dk, *dv;
  AttentionStride to_q, to_k, to_v;
  bool add_q, add_kv;
  const T *d_o, *o, *q, *k, *v;
  const Accumulator<T>* lse;
  Accumulator<T>* dots;
  AttentionShape s;
};

// dots[b, h, i] = dO·o of query i. One warp per query.
template <typename T, typename G>
__global__ void __launch_bounds__(kTileThreads) dots_kernel(BackwardTile<T, G> a) {
  using A = Accumulator<T>;
  const AttentionShape& s = a.s;
  const int64_t row = int64_t{blockIdx.x} * (kTileThreads / 32) + threadIdx.x / 32;
  if (row >= s.batch * s.heads * s.num_queries) return;
  const int64_t i = row % s.num_queries, h = row / s.num_queries % s.heads, b = row / s.num_queries / s.heads;
  const int64_t at = b * s.o.batch + i * s.o.token + h * s.head_dim;
  A sum = 0;
  for (int64_t d = threadIdx.x % 32; d < s.head_dim; d += 32) sum += widen(a.d_o[at + d]) * widen(a.o[at + d]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) a.dots[row] = sum;
}

template <typename T, typename G>
__device__ __forceinline__ void put(G* to, Accumulator<T> value, bool add) {
  *to = static_cast<G>(add ? static_cast<Accumulator<T>>(*to) + value : value);
}

template <typename T, typename G, int C>
__global__ void __launch_bounds__(kTileThreads) query_kernel(BackwardTile<T, G> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  const AttentionShape& s = a.s;
  const int D = static_cast<int>(s.head_dim), stride = tile_stride(D), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  A *q = reinterpret_cast<A*>(shared), *d_o = q + kTile * stride, *k = d_o + kTile * stride, *v = k + kTile * stride;
  const int64_t b = blockIdx.z, h = blockIdx.y, first = int64_t{blockIdx.x} * kTile, g = h / (s.heads / s.kv_heads);
  load_tile(q, a.q + b * s.q.batch + h * D, s.q.token, first, s.num_queries, D);
  load_tile(d_o, a.d_o + b * s.o.batch + h * D, s.o.token, first, s.num_queries, D);
  A lse[kOwn], dot[kOwn], dq[kOwn][C] = {};
  int64_t seen[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    const bool here = query < s.num_queries;
    seen[i] = here ? keys_seen(s, b, query) : 0;
    lse[i] = here ? a.lse[(b * s.heads + h) * s.lse_row + query] : A{0};
    dot[i] = here ? a.dots[(b * s.heads + h) * s.num_queries + query] : A{0};
  }
  const int64_t last = keys_seen(s, b, min(first + kTile, s.num_queries) - 1);
  for (int64_t j = 0; j < last; j += kTile) {
    __syncthreads();
    load_tile(k, a.k + b * s.k.batch + g * D, s.k.token, j, s.num_keys, D);
    load_tile(v, a.v + b * s.v.batch + g * D, s.v.token, j, s.num_keys, D);
    __syncthreads();
    A score[kOwn], dp[kOwn];
    dot_tiles(score, q, k, D);
    dot_tiles(dp, d_o, v, D);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool visible = j + lane < seen[i];
      const A p = visible ? exp_score(score[i] * static_cast<A>(s.scale) - lse[i]) : A{0};
      const A keep = visible ? kept<A>(s, b, h, first + warp * kOwn + i, j + lane) : A{0};
      score[i] = visible ? p * (dp[i] * keep - dot[i]) * static_cast<A>(s.scale) : A{0};
    }
    add_weighted(dq, score, k, D);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t query = first + warp * kOwn + i;
    if (query >= s.num_queries) continue;
#pragma unroll
    for (int c = 0; c < C; ++c)
      if (lane + 32 * c < D)
        put<T>(a.dq + b * a.to_q.batch + query * a.to_q.token + h * D + lane + 32 * c, dq[i][c], a.add_q);
  }
}

template <typename T, typename G, int C>
__global__ void __launch_bounds__(kTileThreads) key_kernel(BackwardTile<T, G> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  const AttentionShape& s = a.s;
  const int D = static_cast<int>(s.head_dim), stride = tile_stride(D), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  A *k = reinterpret_cast<A*>(shared), *v = k + kTile * stride, *q = v + kTile * stride, *d_o = q + kTile * stride;
  const int64_t b = blockIdx.z, g = blockIdx.y, first = int64_t{blockIdx.x} * kTile, share = s.heads / s.kv_heads;
  load_tile(k, a.k + b * s.k.batch + g * D, s.k.token, first, s.num_keys, D);
  load_tile(v, a.v + b * s.v.batch + g * D, s.v.token, first, s.num_keys, D);
  A dk[kOwn][C] = {}, dv[kOwn][C] = {};
  // First query of the first query tile that sees any of these keys.
  const int64_t begin = s.causal ? max(int64_t{0}, first - s.causal_offset) / kTile * kTile : 0;
  for (int64_t h = g * share; h < (g + 1) * share; ++h)
    for (int64_t i0 = begin; i0 < s.num_queries; i0 += kTile) {
      __syncthreads();
      load_tile(q, a.q + b * s.q.batch + h * D, s.q.token, i0, s.num_queries, D);
      load_tile(d_o, a.d_o + b * s.o.batch + h * D, s.o.token, i0, s.num_queries, D);
      __syncthreads();
      const int64_t query = i0 + lane;
      const bool here = query < s.num_queries;
      const int64_t seen = here ? keys_seen(s, b, query) : 0;
      const A lse = here ? a.lse[(b * s.heads + h) * s.lse_row + query] : A{0};
      const A dot = here ? a.dots[(b * s.heads + h) * s.num_queries + query] : A{0};
      A score[kOwn], dp[kOwn];
      dot_tiles(score, k, q, D);
      dot_tiles(dp, v, d_o, D);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int64_t j = first + warp * kOwn + i;
        const bool visible = j < seen;
        const A p = visible ? exp_score(score[i] * static_cast<A>(s.scale) - lse) : A{0};
        const A keep = visible ? kept<A>(s, b, h, query, j) : A{0};
        score[i] = visible ? p * (dp[i] * keep - dot) * static_cast<A>(s.scale) : A{0};
        dp[i] = p * keep;
      }
      add_weighted(dk, score, q, D);
      add_weighted(dv, dp, d_o, D);
    }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int64_t key = first + warp * kOwn + i;
    if (key >= s.num_keys) continue;
#pragma unroll
    for (int c = 0; c < C; ++c)
      if (lane + 32 * c < D) {
        put<T>(a.dk + b * a.to_k.batch + key * a.to_k.token + g * D + lane + 32 * c, dk[i][c], a.add_kv);
        put<T>(a.dv + b * a.to_v.batch + key * a.to_v.token + g * D + lane + 32 * c, dv[i][c], a.add_kv);
      }
  }
}

// Replaces lse_row 0 (the default) by the actual stride, because device code cannot call the host function
// lse_stride().
AttentionShape resolve_strides(AttentionShape s) {
  s.lse_row = s.lse_stride();
  return s;
}

// Bytes of shared memory for `tiles` tiles. Checks the limit, because the error of a failed launch would be less clear.
template <typename A>
int tile_bytes(int tiles, const AttentionShape& s) {
  const auto bytes =
      static_cast<int>(static_cast<size_t>(tiles * kTile * tile_stride(static_cast<int>(s.head_dim))) * sizeof(A));
  ESP_CHECK(s.head_dim <= 256 && bytes <= 227 << 10,
            "attention on a GPU: got head_dim {} ({} bytes of shared memory); must be <= 256 (<= {} bytes)", s.head_dim,
            bytes, 227 << 10);
  return bytes;
}

template <typename K, typename Args>
void launch_tiles(K kernel, const Args& args, int64_t rows, int64_t heads, int bytes, cudaStream_t stream) {
  ESP_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, kTile)), static_cast<unsigned>(heads),
                  static_cast<unsigned>(args.s.batch));
  kernel<<<grid, kTileThreads, static_cast<size_t>(bytes), stream>>>(args);
  ESP_CUDA_LAUNCHED();
}

template <typename T, typename G>
void backward(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k, const void* v,
              const void* lse, void* dots, const AttentionShape& s, device::CudaQueue& queue) {
  using A = Accumulator<T>;
  const BackwardTile<T, G> a{static_cast<G*>(sums.dq),
                             static_cast<G*>(sums.dk),
                             static_cast<G*>(sums.dv),
                             sums.q,
                             sums.k,
                             sums.v,
                             sums.add_q,
                             sums.add_kv,
                             static_cast<const T*>(d_o),
                             static_cast<const T*>(o),
                             static_cast<const T*>(q),
                             static_cast<const T*>(k),
                             static_cast<const T*>(v),
                             static_cast<const A*>(lse),
                             static_cast<A*>(dots),
                             resolve_strides(s)};
  const int64_t rows = s.batch * s.heads * s.num_queries;
  if (rows > 0) {
    dots_kernel<<<static_cast<unsigned>(ceil_div(rows, kTileThreads / 32)), kTileThreads, 0, queue.handle>>>(a);
    ESP_CUDA_LAUNCHED();
  }
  const int bytes = tile_bytes<A>(4, s);
  with_columns(s.head_dim, [&](auto columns) {
    if (rows > 0) launch_tiles(query_kernel<T, G, columns()>, a, s.num_queries, s.heads, bytes, queue.handle);
    if (s.num_keys > 0) launch_tiles(key_kernel<T, G, columns()>, a, s.num_keys, s.kv_heads, bytes, queue.handle);
  });
}

__global__ void fill_kernel(int32_t* to, int64_t count, int32_t value) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i] = value;
}

}  // namespace

void fill_int32(int32_t* to, int64_t count, int32_t value, cudaStream_t stream) {
  fill_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(to, count, value);
  ESP_CUDA_LAUNCHED();
}

void tile_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                  bool merge_previous, DType dtype, device::CudaQueue& queue) {
  if (shape.batch * shape.heads * shape.num_queries == 0) return;
  const AttentionShape s = resolve_strides(shape);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    auto run = [&]<typename O>(std::type_identity<O>) {
      const ForwardTile<T, O> a{static_cast<O*>(o),
                                static_cast<A*>(lse),
                                static_cast<const T*>(q),
                                static_cast<const T*>(k),
                                static_cast<const T*>(v),
                                s,
                                merge_previous};
      with_columns(shape.head_dim, [&](auto columns) {
        launch_tiles(forward_kernel<T, O, columns()>, a, shape.num_queries, shape.heads, tile_bytes<A>(3, shape),
                     queue.handle);
      });
    };
    if (merge_previous)
      run(std::type_identity<A>{});
    else
      run(std::type_identity<T>{});
  });
}

void tile_backward(const AttentionSums& sums, bool wide, const void* d_o, const void* o, const void* q, const void* k,
                   const void* v, const void* lse, void* dots, const AttentionShape& shape, DType dtype,
                   device::CudaQueue& queue) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    if (wide)
      backward<T, Accumulator<T>>(sums, d_o, o, q, k, v, lse, dots, shape, queue);
    else
      backward<T, T>(sums, d_o, o, q, k, v, lse, dots, shape, queue);
  });
}

int64_t tile_backward_bytes(const AttentionShape& shape, DType dtype) {
  return shape.batch * shape.heads * shape.num_queries * (dtype == DType::f64 ? 8 : 4);
}

}  // namespace esp::kernel::cuda
