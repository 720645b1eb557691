// Attention of few queries to many keys, as in generation with a cache: bound by reading keys and values once.
//
// Keys are divided among blocks; each takes the queries of all heads that share its keys, leaves a partial output and a
// log-sum-exp, and a second kernel merges them. A thread makes the scores of one key, reading its row in packs; for the
// outputs threads lie along a value's row.
#include "esp/kernel/cuda/attention_tile.cuh"
#include "esp/kernel/cuda/attention_tile.h"

namespace esp::kernel::cuda {
namespace {

constexpr int kMaxRows = 8;      // query rows (queries × heads of a group) of a block
constexpr int kKeys = kThreads;  // of a block's round

template <typename T>
struct Decode {
  T* o;
  Accumulator<T>* lse;
  const T *q, *k, *v;
  Accumulator<T>*parts, *part_lse;  // [splits, B·heads·queries, D] and without D
  int64_t splits, keys_per_split;
  AttentionShape s;
};

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) part_kernel(Decode<T> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  const AttentionShape& s = a.s;
  const int D = static_cast<int>(s.head_dim), share = static_cast<int>(s.heads / s.kv_heads);
  const int rows = share * static_cast<int>(s.num_queries), packs = D / N, groups = kThreads / packs;
  A *q = reinterpret_cast<A*>(shared), *p = q + rows * D,
    *meet = p + rows * kKeys;  // [rows, D], [rows, keys], [groups, D]
  __shared__ A tops[kMaxRows], sums[kMaxRows], shrinks[kMaxRows];
  const int64_t b = blockIdx.z, g = blockIdx.y;
  for (int i = threadIdx.x; i < rows * D; i += kThreads) {
    const int row = i / D;
    const int64_t h = g * share + row / s.num_queries, query = row % s.num_queries;
    q[i] = widen(a.q[b * s.q.batch + query * s.q.token + h * D + i % D]) * static_cast<A>(s.scale);
  }
  if (threadIdx.x < kMaxRows) {
    tops[threadIdx.x] = A(-INFINITY);
    sums[threadIdx.x] = 0;
  }
  A out[kMaxRows][N] = {};
  const int pack = threadIdx.x % packs, group = threadIdx.x / packs;
  const int64_t begin = blockIdx.x * a.keys_per_split;
  const int64_t end = min(begin + a.keys_per_split, keys_seen(s, b, s.num_queries - 1));
  __syncthreads();
  for (int64_t j0 = begin; j0 < end; j0 += kKeys) {
    const int64_t j = j0 + threadIdx.x;
    A score[kMaxRows] = {};
    if (j < end) {
      const T* key = a.k + b * s.k.batch + j * s.k.token + g * D;
      for (int d = 0; d < D; d += N) {
        const auto in = load_pack<N>(key + d);
#pragma unroll
        for (int r = 0; r < kMaxRows; ++r) {
          if (r >= rows) break;
#pragma unroll
          for (int n = 0; n < N; ++n) score[r] += q[r * D + d + n] * widen(in.at[n]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kMaxRows; ++r) {
      if (r >= rows) break;
      p[r * kKeys + threadIdx.x] = j < end && j < keys_seen(s, b, r % s.num_queries) ? score[r] : A(-INFINITY);
    }
    __syncthreads();
    // A warp per row brings its maximum and sum up to date.
    for (int r = threadIdx.x / 32; r < rows; r += kThreads / 32) {
      A highest = tops[r];
      for (int i = threadIdx.x % 32; i < kKeys; i += 32) highest = max(highest, p[r * kKeys + i]);
      highest = warp_max(highest);
      A sum = 0;
      for (int i = threadIdx.x % 32; i < kKeys; i += 32) {
        const A value = highest == A(-INFINITY) ? A{0} : exp_score(p[r * kKeys + i] - highest);
        p[r * kKeys + i] = value;
        sum += value;
      }
      sum = warp_sum(sum);
      if (threadIdx.x % 32 == 0) {
        shrinks[r] = tops[r] == A(-INFINITY) ? A{0} : exp_score(tops[r] - highest);
        sums[r] = sums[r] * shrinks[r] + sum;
        tops[r] = highest;
      }
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kMaxRows; ++r) {
      if (r >= rows) break;
#pragma unroll
      for (int n = 0; n < N; ++n) out[r][n] *= shrinks[r];
    }
    const int count = static_cast<int>(min(int64_t{kKeys}, end - j0));
    if (group < groups) {
#pragma unroll 4
      for (int i = group; i < count; i += groups) {
        const auto in = load_pack<N>(a.v + b * s.v.batch + (j0 + i) * s.v.token + g * D + pack * N);
#pragma unroll
        for (int r = 0; r < kMaxRows; ++r) {
          if (r >= rows) break;
          const A weight = p[r * kKeys + i];
#pragma unroll
          for (int n = 0; n < N; ++n) out[r][n] += weight * widen(in.at[n]);
        }
      }
    }
    __syncthreads();
  }
  // Groups of threads have sums over different keys.
#pragma unroll
  for (int r = 0; r < kMaxRows; ++r) {
    if (r >= rows) break;
    __syncthreads();
    if (group < groups) {
#pragma unroll
      for (int n = 0; n < N; ++n) meet[group * D + pack * N + n] = out[r][n];
    }
    __syncthreads();
    const int64_t h = g * share + r / s.num_queries, query = r % s.num_queries;
    const int64_t row = blockIdx.x * s.batch * s.heads * s.num_queries + (b * s.heads + h) * s.num_queries + query;
    const A inverse = sums[r] == 0 ? A{0} : A{1} / sums[r];
    for (int d = threadIdx.x; d < D; d += kThreads) {
      A total = 0;
      for (int k = 0; k < groups; ++k) total += meet[k * D + d];
      a.parts[row * D + d] = total * inverse;
    }
    if (threadIdx.x == 0) a.part_lse[row] = sums[r] == 0 ? A(-INFINITY) : tops[r] + log_sum(sums[r]);
  }
}

// A warp per query row.
template <typename T>
__global__ void __launch_bounds__(kThreads) merge_kernel(Decode<T> a) {
  using A = Accumulator<T>;
  const AttentionShape& s = a.s;
  const int64_t rows = s.batch * s.heads * s.num_queries,
                row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int64_t query = row % s.num_queries, h = row / s.num_queries % s.heads, b = row / s.num_queries / s.heads;
  A highest = A(-INFINITY), sum = 0;
  for (int64_t i = 0; i < a.splits; ++i) highest = max(highest, a.part_lse[i * rows + row]);
  if (highest != A(-INFINITY))
    for (int64_t i = 0; i < a.splits; ++i) sum += exp_score(a.part_lse[i * rows + row] - highest);
  for (int64_t d = threadIdx.x % 32; d < s.head_dim; d += 32) {
    A total = 0;
    if (sum != 0)
      for (int64_t i = 0; i < a.splits; ++i)
        total += exp_score(a.part_lse[i * rows + row] - highest) * a.parts[(i * rows + row) * s.head_dim + d];
    a.o[b * s.o.batch + query * s.o.token + h * s.head_dim + d] = narrow<T>(sum == 0 ? A{0} : total / sum);
  }
  if (threadIdx.x % 32 == 0)
    a.lse[(b * s.heads + h) * s.lse_row + query] = sum == 0 ? A(-INFINITY) : highest + log_sum(sum);
}

struct Split {
  int64_t splits = 0, keys = 0;
};
// Enough blocks to fill the GPU twice, none with less than a round of keys.
Split split_of(const AttentionShape& s, const device::Queue& queue) {
  const int64_t pairs = s.batch * s.kv_heads, wanted = ceil_div(int64_t{queue.multiprocessors} * 2, pairs);
  const int64_t keys = std::max<int64_t>(kKeys, ceil_div(ceil_div(s.num_keys, wanted), kKeys) * kKeys);
  return {ceil_div(s.num_keys, keys), keys};
}

}  // namespace

int64_t decode_bytes(const AttentionShape& s, DType dtype, const device::Queue& queue) {
  const int64_t width = static_cast<int64_t>(16 / size_of(dtype)), row = s.num_queries * (s.heads / s.kv_heads);
  const int64_t strides = s.k.batch | s.k.token | s.v.batch | s.v.token;
  if (row > kMaxRows || row == 0 || s.num_keys < 2 * kKeys || s.dropout != 0 || s.head_dim % width != 0 ||
      strides % width != 0 || s.head_dim > 256)
    return 0;
  return split_of(s, queue).splits * s.batch * s.heads * s.num_queries * (s.head_dim + 1) *
         (dtype == DType::f64 ? 8 : 4);
}

void decode_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                    const AttentionShape& shape, DType dtype, device::Queue& queue) {
  const auto [splits, keys] = split_of(shape, queue);
  with_floating(dtype, [&, splits = splits, keys = keys]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    AttentionShape s = shape;
    s.lse_row = s.lse_stride();
    const int64_t rows = s.batch * s.heads * s.num_queries, own = s.num_queries * (s.heads / s.kv_heads);
    A* parts = static_cast<A*>(scratch);
    const Decode<T> a{static_cast<T*>(o),
                      static_cast<A*>(lse),
                      static_cast<const T*>(q),
                      static_cast<const T*>(k),
                      static_cast<const T*>(v),
                      parts,
                      parts + splits * rows * s.head_dim,
                      splits,
                      keys,
                      s};
    const int64_t groups = kThreads / (s.head_dim / kPack<T>);
    const auto bytes =
        static_cast<int>(static_cast<size_t>(own * s.head_dim + own * kKeys + groups * s.head_dim) * sizeof(A));
    auto* kernel = part_kernel<T, kPack<T>>;
    ESP_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(s.kv_heads), static_cast<unsigned>(s.batch));
    kernel<<<grid, kThreads, static_cast<size_t>(bytes), queue.handle>>>(a);
    ESP_CUDA_LAUNCHED();
    merge_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads / 32)), kThreads, 0, queue.handle>>>(a);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
