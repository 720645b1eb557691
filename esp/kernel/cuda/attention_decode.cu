// Attention for decoding: few queries, many keys. The kernel is limited by memory bandwidth, so keys and values are
// read once.
//
// Keys are split over thread blocks (split-K decoding). Each block processes the queries of all heads that share its
// keys, and writes a partial output and a log-sum-exp. A second kernel merges the partial outputs.
//
// Within a block, a group of L lanes reads the row of a key, one pack per lane, and then the row of its value. The 32/L
// groups of a warp process different keys. Each group has its own maximum and sums; they are merged at the end.
#include "esp/kernel/cuda/attention_tile.cuh"
#include "esp/kernel/cuda/attention_tile.h"
#include "esp/kernel/cuda/online_softmax.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kMaxRows = 8;  // maximum query rows (queries × heads of a group) per block
constexpr int kWarps = 4;

template <typename T>
struct DecodeArgs {
  T* o;
  Accumulator<T>* lse;
  const T *q, *k, *v;
  // parts: partial outputs [splits, B·heads·queries, D]; part_lse [splits, B·heads·queries]
  Accumulator<T>*parts, *part_lse;
  int64_t splits, keys_per_split;
  AttentionShape s;
};

// Online softmax state of a lane group for one query row. Exponentials are powers of two, so q was multiplied by log₂e.
template <typename A, int N>
struct SoftmaxState {
  A top = -INFINITY, sum = 0, out[N] = {};
  __device__ __forceinline__ void merge(A other_top, A other_sum, const A (&other)[N]) {
    const A highest = fmax(top, other_top);
    if (highest == A(-INFINITY)) return;
    const A mine = power_of_two(top - highest), theirs = power_of_two(other_top - highest);
    sum = sum * mine + other_sum * theirs;
#pragma unroll
    for (int n = 0; n < N; ++n) out[n] = out[n] * mine + other[n] * theirs;
    top = highest;
  }
};

template <typename T, int L, int R>
__global__ void __launch_bounds__(kWarps * 32) part_kernel(DecodeArgs<T> a) {
  using A = Accumulator<T>;
  constexpr int N = kPack<T>, D = L * N, kGroups = kWarps * (32 / L);
  // number of keys that a lane group loads at a time; a larger number needs more registers and allows fewer resident
  // warps
  constexpr int kAhead = R <= 2 ? 4 : 2;
  __shared__ A partials[kWarps][R][D], tops[kWarps][R], sums[kWarps][R];
  const AttentionShape& s = a.s;
  const int64_t b = blockIdx.z, g = blockIdx.y, share = s.heads / s.kv_heads, rows = share * s.num_queries;
  const int lane = threadIdx.x % L, group = threadIdx.x / L, warp = threadIdx.x / 32;
  A q[R][N];
  int64_t seen[R];
  SoftmaxState<A, N> state[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int64_t h = g * share + r / s.num_queries, query = r % s.num_queries;
    seen[r] = r < rows ? keys_seen(s, b, query) : 0;
    Pack<T, N> in{};
    if (r < rows) in = load_pack<N>(a.q + b * s.q.batch + query * s.q.token + h * D + lane * N);
#pragma unroll
    for (int n = 0; n < N; ++n) q[r][n] = widen(in.at[n]) * static_cast<A>(s.scale) * kLog2E<A>;
  }
  const int64_t begin = blockIdx.x * a.keys_per_split;
  const int64_t end = min(begin + a.keys_per_split, keys_seen(s, b, s.num_queries - 1));
  const T *keys = a.k + b * s.k.batch + g * D + lane * N, *values = a.v + b * s.v.batch + g * D + lane * N;
  // all lanes run the same iterations, because they exchange values by shuffles
  for (int64_t j0 = begin; j0 < end; j0 += kGroups * kAhead) {
    Pack<T, N> k[kAhead] = {}, v[kAhead] = {};
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t j = j0 + u * kGroups + group;
      if (j < end) k[u] = load_pack<N>(keys + j * s.k.token);
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t j = j0 + u * kGroups + group;
      if (j < end) v[u] = load_pack<N>(values + j * s.v.token);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
      A score[kAhead], highest = state[r].top;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        score[u] = 0;
#pragma unroll
        for (int n = 0; n < N; ++n) score[u] += q[r][n] * widen(k[u].at[n]);
#pragma unroll
        for (int offset = L / 2; offset > 0; offset /= 2) score[u] += __shfl_xor_sync(0xffffffffu, score[u], offset);
        const int64_t j = j0 + u * kGroups + group;
        if (j >= end || j >= seen[r]) score[u] = A(-INFINITY);
        highest = fmax(highest, score[u]);
      }
      if (highest == A(-INFINITY)) continue;
      const A shrink = power_of_two(state[r].top - highest);
      state[r].sum *= shrink;
#pragma unroll
      for (int n = 0; n < N; ++n) state[r].out[n] *= shrink;
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const A p = power_of_two(score[u] - highest);
        state[r].sum += p;
#pragma unroll
        for (int n = 0; n < N; ++n) state[r].out[n] += p * widen(v[u].at[n]);
      }
      state[r].top = highest;
    }
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int offset = L; offset < 32; offset *= 2) {
      A other[N];
      const A top = __shfl_xor_sync(0xffffffffu, state[r].top, offset),
              sum = __shfl_xor_sync(0xffffffffu, state[r].sum, offset);
#pragma unroll
      for (int n = 0; n < N; ++n) other[n] = __shfl_xor_sync(0xffffffffu, state[r].out[n], offset);
      state[r].merge(top, sum, other);
    }
    if (threadIdx.x % 32 < L) {
#pragma unroll
      for (int n = 0; n < N; ++n) partials[warp][r][lane * N + n] = state[r].out[n];
    }
    if (threadIdx.x % 32 == 0) {
      tops[warp][r] = state[r].top;
      sums[warp][r] = state[r].sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * D; i += kWarps * 32) {
    const int r = i / D, d = i % D;
    SoftmaxState<A, 1> all;
    for (int w = 0; w < kWarps; ++w) {
      const A other[1] = {partials[w][r][d]};
      all.merge(tops[w][r], sums[w][r], other);
    }
    const int64_t h = g * share + r / s.num_queries, query = r % s.num_queries;
    const int64_t row = blockIdx.x * s.batch * s.heads * s.num_queries + (b * s.heads + h) * s.num_queries + query;
    a.parts[row * D + d] = all.sum == 0 ? A{0} : all.out[0] / all.sum;
    if (d == 0) a.part_lse[row] = all.sum == 0 ? A(-INFINITY) : (all.top + log2(all.sum)) / kLog2E<A>;
  }
}

// Merges the splits. One block per query row computes the weights of the splits, then the output. Threads of a group
// are along the row, and the groups divide the splits.
template <typename T>
__global__ void __launch_bounds__(kThreads) merge_kernel(DecodeArgs<T> a) {
  using A = Accumulator<T>;
  extern __shared__ double shared[];
  __shared__ A partials[2][kThreads / 32];
  const AttentionShape& s = a.s;
  const int D = static_cast<int>(s.head_dim), groups = kThreads / D, group = threadIdx.x / D, d = threadIdx.x % D;
  const int64_t rows = s.batch * s.heads * s.num_queries, row = blockIdx.x;
  A *shares = reinterpret_cast<A*>(shared), *sums = shares + a.splits;
  const int64_t query = row % s.num_queries, h = row / s.num_queries % s.heads, b = row / s.num_queries / s.heads;
  A highest = A(-INFINITY), sum[1] = {};
  for (int64_t i = threadIdx.x; i < a.splits; i += kThreads) highest = fmax(highest, a.part_lse[i * rows + row]);
  highest = warp_max(highest);
  if (threadIdx.x % 32 == 0) partials[0][threadIdx.x / 32] = highest;
  __syncthreads();
  for (A other : partials[0]) highest = fmax(highest, other);
  for (int64_t i = threadIdx.x; i < a.splits; i += kThreads) {
    const A share = highest == A(-INFINITY) ? A{0} : exp_score(a.part_lse[i * rows + row] - highest);
    shares[i] = share;
    sum[0] += share;
  }
  row_sums<kThreads>(sum, partials[1]);  // the barrier inside also makes all weights in `shares` visible
  A total = 0;
  if (group < groups) {
#pragma unroll 8
    for (int64_t i = group; i < a.splits; i += groups) total += shares[i] * a.parts[(i * rows + row) * D + d];
    sums[group * D + d] = total;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < D) {
    total = 0;
    for (int k = 0; k < groups; ++k) total += sums[k * D + d];
    a.o[b * s.o.batch + query * s.o.token + h * D + d] = narrow<T>(sum[0] == 0 ? A{0} : total / sum[0]);
  }
  if (threadIdx.x == 0)
    a.lse[(b * s.heads + h) * s.lse_row + query] = sum[0] == 0 ? A(-INFINITY) : highest + log_sum(sum[0]);
}

struct KeySplit {
  int64_t splits = 0, keys = 0;
};
// Chooses the number of splits: enough blocks to fill the GPU several times, but at least kLeast keys per block.
KeySplit split_of(const AttentionShape& s, const device::CudaQueue& queue) {
  constexpr int64_t kLeast = 128;
  const int64_t pairs = s.batch * s.kv_heads, wanted = ceil_div(int64_t{queue.multiprocessors} * 6, pairs);
  const int64_t keys = std::max(kLeast, ceil_div(ceil_div(s.num_keys, wanted), kLeast) * kLeast);
  return {ceil_div(s.num_keys, keys), keys};
}

// Number of lanes that read the row of one key: 4, 8, 16 or 32, or 0 if the head size is not supported.
int64_t lanes_of(const AttentionShape& s, DType dtype) {
  const auto width = static_cast<int64_t>(16 / size_of(dtype));
  const int64_t lanes = s.head_dim % width == 0 ? s.head_dim / width : 0;
  return lanes == 4 || lanes == 8 || lanes == 16 || lanes == 32 ? lanes : 0;
}

template <typename T, int L>
void launch_parts(const DecodeArgs<T>& a, device::CudaQueue& queue) {
  const AttentionShape& s = a.s;
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(s.kv_heads), static_cast<unsigned>(s.batch));
  const int64_t rows = s.num_queries * (s.heads / s.kv_heads);
  if (rows == 1)
    part_kernel<T, L, 1><<<grid, kWarps * 32, 0, queue.handle>>>(a);
  else if (rows == 2)
    part_kernel<T, L, 2><<<grid, kWarps * 32, 0, queue.handle>>>(a);
  else if (rows <= 4)
    part_kernel<T, L, 4><<<grid, kWarps * 32, 0, queue.handle>>>(a);
  else
    part_kernel<T, L, kMaxRows><<<grid, kWarps * 32, 0, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
}

}  // namespace

int64_t decode_bytes(const AttentionShape& s, DType dtype, const device::CudaQueue& queue) {
  const int64_t row = s.num_queries * (s.heads / s.kv_heads), width = static_cast<int64_t>(16 / size_of(dtype));
  const int64_t strides = s.k.batch | s.k.token | s.v.batch | s.v.token | s.q.batch | s.q.token;
  if (row > kMaxRows || row == 0 || s.num_keys < 256 || s.dropout != 0 || lanes_of(s, dtype) == 0 ||
      strides % width != 0)
    return 0;
  return split_of(s, queue).splits * s.batch * s.heads * s.num_queries * (s.head_dim + 1) *
         (dtype == DType::f64 ? 8 : 4);
}

void decode_forward(void* o, void* lse, const void* q, const void* k, const void* v, void* scratch,
                    const AttentionShape& shape, DType dtype, device::CudaQueue& queue) {
  const auto [splits, keys] = split_of(shape, queue);
  with_floating(dtype, [&, splits = splits, keys = keys]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    AttentionShape s = shape;
    s.lse_row = s.lse_stride();
    const int64_t rows = s.batch * s.heads * s.num_queries;
    A* parts = static_cast<A*>(scratch);
    const DecodeArgs<T> a{static_cast<T*>(o),
                          static_cast<A*>(lse),
                          static_cast<const T*>(q),
                          static_cast<const T*>(k),
                          static_cast<const T*>(v),
                          parts,
                          parts + splits * rows * s.head_dim,
                          splits,
                          keys,
                          s};
    switch (lanes_of(s, dtype)) {
      case 4:
        launch_parts<T, 4>(a, queue);
        break;
      case 8:
        launch_parts<T, 8>(a, queue);
        break;
      case 16:
        launch_parts<T, 16>(a, queue);
        break;
      default:
        launch_parts<T, 32>(a, queue);
    }
    const size_t bytes = static_cast<size_t>(splits + kThreads) * sizeof(A);
    merge_kernel<<<static_cast<unsigned>(rows), kThreads, bytes, queue.handle>>>(a);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
