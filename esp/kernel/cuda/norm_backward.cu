// A block walks down its share of the rows; a thread has the same pack of columns in each, so the sums of the weights'
// gradients stay in its registers. What blocks sum is added up by a second kernel in one order: no atomics.
#include "esp/kernel/cuda/norm_backward.h"

#include "esp/kernel/cuda/column_sums.h"
#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T>
struct Walk {
  T* dx;
  const T *dy, *x;
  const Accumulator<T>*mean, *rstd;
  const T* gamma;
  Accumulator<T>*dgamma, *dbeta;  // [blocks, dim]
  int64_t rows, dim, rows_per_block;
  bool layer, accumulate;
};

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]), the first mean for layer only;
// dγ = Σ dy·x̂, dβ = Σ dy.
// The next row is asked for before this one is summed, which takes a barrier.
template <typename T, int R>
__global__ void __launch_bounds__(kRowThreads<R>, 768 / kRowThreads<R>) walk_kernel(Walk<T> a) {
  constexpr int N = kPack<T>, kGroups = kRowsPerBlock<R>, kWarps = kRowThreads<R> / 32;
  using A = Accumulator<T>;
  struct Row {
    Pack<T, N> x, g, old;
    A middle, scale;
  };
  __shared__ A meet[2][2 * kWarps];  // turn by turn: one barrier a row is enough
  __shared__ A join[kGroups > 1 ? kGroups * R * N : 1];
  const int lane = threadIdx.x % R, group = threadIdx.x / R, c = lane * N;
  const bool mine = c < a.dim;
  const int64_t begin = blockIdx.x * a.rows_per_block, end = min(a.rows, begin + a.rows_per_block);
  A dgamma[N] = {}, dbeta[N] = {};
  Pack<T, N> gamma{};
  if (mine) gamma = load_pack<N>(a.gamma + c);
  const auto fetch = [&](Row& to, int64_t row) {
    if (!mine || row >= end) return;
    to.x = load_pack<N>(a.x + row * a.dim + c);
    to.g = load_pack<N>(a.dy + row * a.dim + c);
    if (a.accumulate) to.old = load_pack<N>(a.dx + row * a.dim + c);
    to.middle = a.mean ? a.mean[row] : A{0};
    to.scale = a.rstd[row];
  };
  const A part = A{1} / static_cast<A>(a.dim);
  Row next{};
  fetch(next, begin + group);
  int turn = 0;
  for (int64_t first = begin; first < end; first += kGroups, turn ^= 1) {
    const Row at = next;
    const int64_t row = first + group;
    const bool here = mine && row < end;
    fetch(next, row + kGroups);
    A sums[2] = {};
    if (here) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A dy = widen(at.g.at[k]), normal = (widen(at.x.at[k]) - at.middle) * at.scale,
                weighted = dy * widen(gamma.at[k]);
        sums[0] += weighted;
        sums[1] += weighted * normal;
        dgamma[k] += dy * normal;
        dbeta[k] += dy;
      }
    }
    row_sums<R>(sums, meet[turn]);
    if (here) {
      const A mean_g = a.layer ? sums[0] * part : A{0}, mean_gx = sums[1] * part;
      A value[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A normal = (widen(at.x.at[k]) - at.middle) * at.scale;
        value[k] = at.scale * (widen(at.g.at[k]) * widen(gamma.at[k]) - mean_g - normal * mean_gx);
        if (a.accumulate) value[k] += widen(at.old.at[k]);
      }
      store_pack<N>(a.dx + row * a.dim + c, narrow_all<T>(value));
    }
  }
  // The groups of a block meet, the first of them writes.
  auto finish = [&](A* to, const A(&sum)[N]) {
    if (!to) return;
    if constexpr (kGroups > 1) {
      __syncthreads();
#pragma unroll
      for (int k = 0; k < N; ++k) join[(group * N + k) * R + lane] = sum[k];
      __syncthreads();
    }
    if (group != 0 || !mine) return;
    Pack<A, N> total;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      total.at[k] = sum[k];
      for (int other = 1; other < kGroups; ++other) total.at[k] += join[(other * N + k) * R + lane];
    }
    store_pack<N>(to + blockIdx.x * a.dim + c, total);
  };
  finish(a.dgamma, dgamma);
  finish(a.dbeta, dbeta);
}

// Short rows: a warp has one whole, so that nobody waits for others and many loads are under way.
constexpr int kRowWarps = 4;
template <typename T, int P>
__global__ void __launch_bounds__(kRowWarps * 32) warp_kernel(Walk<T> a) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A join[kRowWarps][P * 32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = blockIdx.x * a.rows_per_block, end = min(a.rows, begin + a.rows_per_block);
  A dgamma[P][N] = {}, dbeta[P][N] = {};
  const A part = A{1} / static_cast<A>(a.dim);
  const auto column = [&](int p) { return (lane + p * 32) * N; };
  for (int64_t row = begin + warp; row < end; row += kRowWarps) {
    Pack<T, N> x[P], g[P], old[P];
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.dim) {
        x[p] = load_pack<N>(a.x + row * a.dim + column(p));
        g[p] = load_pack<N>(a.dy + row * a.dim + column(p));
        if (a.accumulate) old[p] = load_pack<N>(a.dx + row * a.dim + column(p));
      }
    const A middle = a.mean ? a.mean[row] : A{0}, scale = a.rstd[row];
    A sums[2] = {};
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.dim) {
        const auto gamma = load_pack<N>(a.gamma + column(p));
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const A dy = widen(g[p].at[k]), normal = (widen(x[p].at[k]) - middle) * scale,
                  weighted = dy * widen(gamma.at[k]);
          sums[0] += weighted;
          sums[1] += weighted * normal;
          dgamma[p][k] += dy * normal;
          dbeta[p][k] += dy;
        }
      }
    row_sums<32>(sums, static_cast<A*>(nullptr));
    const A mean_g = a.layer ? sums[0] * part : A{0}, mean_gx = sums[1] * part;
#pragma unroll
    for (int p = 0; p < P; ++p)
      if (column(p) < a.dim) {
        const auto gamma = load_pack<N>(a.gamma + column(p));
        A value[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const A normal = (widen(x[p].at[k]) - middle) * scale;
          value[k] = scale * (widen(g[p].at[k]) * widen(gamma.at[k]) - mean_g - normal * mean_gx);
          if (a.accumulate) value[k] += widen(old[p].at[k]);
        }
        store_pack<N>(a.dx + row * a.dim + column(p), narrow_all<T>(value));
      }
  }
  auto finish = [&](A* to, const A(&sum)[P][N]) {
    if (!to) return;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < P; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) join[warp][(p * N + k) * 32 + lane] = sum[p][k];
    __syncthreads();
    for (int i = threadIdx.x; i < P * 32 * N; i += kRowWarps * 32) {
      const int c = (i % 32 + i / 32 / N * 32) * N + i / 32 % N;
      A total = 0;
#pragma unroll
      for (int w = 0; w < kRowWarps; ++w) total += join[w][i];
      if (c < a.dim) to[blockIdx.x * a.dim + c] = total;
    }
  };
  finish(a.dgamma, dgamma);
  finish(a.dbeta, dbeta);
}

// Of either kernel: as many blocks as run at once, each with at least a few rows, and then what they summed.
template <typename T>
void launch(void (*kernel)(Walk<T>), int threads, int64_t least_rows, const NormGradients& to, Walk<T> a, DType dtype,
            const device::Stream& stream) {
  using A = Accumulator<T>;
  device::Queue& queue = queue_of(stream);
  int resident = 0;
  ESP_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0));
  const int64_t most = std::max<int64_t>(1, int64_t{queue.multiprocessors} * resident);
  a.rows_per_block = std::max<int64_t>(least_rows, ceil_div(a.rows, most));
  const int64_t blocks = ceil_div(a.rows, a.rows_per_block);
  A* sums = static_cast<A*>(queue.scratch(static_cast<size_t>(2 * blocks * a.dim) * sizeof(A)));
  a.dgamma = sums;
  a.dbeta = to.dbeta ? sums + blocks * a.dim : nullptr;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
  add_chunk_sums(to.dgamma, to.add_to_dgamma, a.dgamma, blocks, a.dim, dtype, stream);
  if (to.dbeta) add_chunk_sums(to.dbeta, to.add_to_dbeta, a.dbeta, blocks, a.dim, dtype, stream);
}

template <typename T, int R>
void walk(const NormGradients& to, const Walk<T>& a, DType dtype, const device::Stream& stream) {
  launch<T>(walk_kernel<T, R>, kRowThreads<R>, 4 * kRowsPerBlock<R>, to, a, dtype, stream);
}
template <typename T, int P>
void by_warps(const NormGradients& to, const Walk<T>& a, DType dtype, const device::Stream& stream) {
  launch<T>(warp_kernel<T, P>, kRowWarps * 32, 4 * kRowWarps, to, a, dtype, stream);
}

}  // namespace

bool norm_backward(const NormGradients& to, const void* dy, const void* x, const void* mean, const void* rstd,
                   const void* gamma, const NormShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0 || dtype == DType::f64 || !aligned(to.dx, dy, x, gamma)) return false;
  bool done = false;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    if constexpr (sizeof(T) < 8) {
      using A = Accumulator<T>;
      const int64_t packs = shape.dim / kPack<T>;
      if (shape.dim % kPack<T> != 0 || packs > 512) return;
      Walk<T> a{static_cast<T*>(to.dx),
                static_cast<const T*>(dy),
                static_cast<const T*>(x),
                static_cast<const A*>(mean),
                static_cast<const A*>(rstd),
                static_cast<const T*>(gamma),
                nullptr,
                nullptr,
                shape.rows,
                shape.dim,
                0,
                shape.kind == NormKind::layer,
                to.add_to_dx};
      done = true;
      if (packs <= 32)
        by_warps<T, 1>(to, a, dtype, stream);
      else if (packs <= 64)
        by_warps<T, 2>(to, a, dtype, stream);
      else if (packs <= 96)
        by_warps<T, 3>(to, a, dtype, stream);
      else if (packs <= 128)
        by_warps<T, 4>(to, a, dtype, stream);
      else if (packs <= 256)
        walk<T, 256>(to, a, dtype, stream);
      else
        walk<T, 512>(to, a, dtype, stream);
    }
  });
  return done;
}

}  // namespace esp::kernel::cuda
