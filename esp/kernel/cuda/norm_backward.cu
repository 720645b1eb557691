// Blocks take rows in turns, several at a time, so that what is under way lies close together. Some warps share a row;
// a thread has the same pack of columns in each, so the sums of the weights' gradients stay in its registers. What
// blocks sum is added up by a second kernel in one order: no atomics.
#include "esp/kernel/cuda/norm_backward.h"

#include <cuda_pipeline.h>

#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T>
struct Walk {
  T* dx;
  const T *dy, *x;
  const Accumulator<T>*mean, *rstd;
  const T* gamma;
  Accumulator<T>* sums;  // [blocks, 3, dim]: of dγ, dβ and, where wanted, dx
  int64_t rows, dim;
  bool layer, accumulate, sum_dx;
};

// Warps that share a row, and how many rows a block has under way: 24 warps of up to 85 registers a thread.
template <int W>
inline constexpr int kRowsAtOnce = W == 1   ? 16
                                   : W > 12 ? 1
                                            : 24 / W;
template <int W>
inline constexpr int kWalkThreads = kRowsAtOnce<W>* W * 32;
constexpr int kStages = 3;  // rows asked for ahead

// A thread's packs of one row, on their way to it. Nobody else reads them, so no barrier is needed.
template <typename T>
struct alignas(16) Ahead {
  Pack<T, kPack<T>> x, g, old;
};

// The warps of one row wait for each other and for nobody else.
template <int W>
__device__ __forceinline__ void meet_row(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(W * 32) : "memory");
}

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]), the first mean for layer only;
// dγ = Σ dy·x̂, dβ = Σ dy.
template <typename T, int W>
__global__ void __launch_bounds__(kWalkThreads<W>, 1) walk_kernel(Walk<T> a) {
  constexpr int N = kPack<T>, R = W * 32, kGroups = kRowsAtOnce<W>;
  using A = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ A meet[2][kGroups][W][2];  // turn by turn: one barrier a row is enough
  auto* ring = reinterpret_cast<Ahead<T>*>(shared) + threadIdx.x;
  const int lane = threadIdx.x % R, group = threadIdx.x / R, c = lane * N;
  const bool mine = c < a.dim;
  const int64_t begin = int64_t{blockIdx.x} * kGroups + group, step = int64_t{gridDim.x} * kGroups, end = a.rows;
  const auto ask = [&](int64_t row, int slot) {
    if (mine && row < end) {
      Ahead<T>* to = ring + slot * kWalkThreads<W>;
      const int64_t at = row * a.dim + c;
      __pipeline_memcpy_async(&to->x, a.x + at, 16);
      __pipeline_memcpy_async(&to->g, a.dy + at, 16);
      if (a.accumulate) __pipeline_memcpy_async(&to->old, a.dx + at, 16);
    }
    __pipeline_commit();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) ask(begin + s * step, s);
  A dgamma[N] = {}, dbeta[N] = {}, total[N] = {}, gamma[N] = {};
  if (mine) {
    const auto pack = load_pack<N>(a.gamma + c);
#pragma unroll
    for (int k = 0; k < N; ++k) gamma[k] = widen(pack.at[k]);
  }
  const A part = A{1} / static_cast<A>(a.dim);
  A next_middle = 0, next_scale = 0;
  const auto ask_statistics = [&](int64_t row) {
    if (row >= end) return;
    next_middle = a.mean ? a.mean[row] : A{0};
    next_scale = a.rstd[row];
  };
  ask_statistics(begin);
  int turn = 0, slot = 0;
  for (int64_t row = begin; row < end; row += step, turn ^= 1) {
    const int last = slot == 0 ? kStages - 1 : slot - 1;  // read in the turn before
    ask(row + (kStages - 1) * step, last);
    const A middle = next_middle, scale = next_scale;
    ask_statistics(row + step);
    __pipeline_wait_prior(kStages - 1);
    const Ahead<T>& at = ring[slot * kWalkThreads<W>];
    slot = slot == kStages - 1 ? 0 : slot + 1;
    A sums[2] = {}, weighted[N], normal[N];
    if (mine) {
      const auto x = at.x, g = at.g;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A dy = widen(g.at[k]);
        normal[k] = (widen(x.at[k]) - middle) * scale;
        weighted[k] = dy * gamma[k];
        sums[0] += weighted[k];
        sums[1] += weighted[k] * normal[k];
        dgamma[k] += dy * normal[k];
        dbeta[k] += dy;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) sums[i] = warp_sum(sums[i]);
    if constexpr (W > 1) {
      if (threadIdx.x % 32 == 0) meet[turn][group][lane / 32][0] = sums[0], meet[turn][group][lane / 32][1] = sums[1];
      meet_row<W>(group);
      sums[0] = sums[1] = 0;
#pragma unroll
      for (int w = 0; w < W; ++w) sums[0] += meet[turn][group][w][0], sums[1] += meet[turn][group][w][1];
    }
    if (mine) {
      const A mean_g = a.layer ? sums[0] * part : A{0}, mean_gx = sums[1] * part;
      A value[N];
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] = scale * (weighted[k] - mean_g - normal[k] * mean_gx);
      if (a.accumulate) {
        const auto old = at.old;
#pragma unroll
        for (int k = 0; k < N; ++k) value[k] += widen(old.at[k]);
      }
      const auto to = narrow_all<T>(value);
      store_pack<N>(a.dx + row * a.dim + c, to);
      if (a.sum_dx) {
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] += widen(to.at[k]);
      }
    }
  }
  // The groups of a block meet where rows were, the first of them writes.
  A* join = reinterpret_cast<A*>(shared);
  auto finish = [&](int which, const A(&sum)[N]) {
    if constexpr (kGroups > 1) {
      __syncthreads();
#pragma unroll
      for (int k = 0; k < N; ++k) join[(group * N + k) * R + lane] = sum[k];
      __syncthreads();
    }
    if (group != 0 || !mine) return;
    Pack<A, N> all;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      all.at[k] = sum[k];
      for (int other = 1; other < kGroups; ++other) all.at[k] += join[(other * N + k) * R + lane];
    }
    store_pack<N>(a.sums + (int64_t{blockIdx.x} * 3 + which) * a.dim + c, all);
  };
  finish(0, dgamma);
  finish(1, dbeta);
  if (a.sum_dx) finish(2, total);
}

template <typename T>
struct Added {
  T *dgamma, *dbeta;
  Accumulator<T>* dx_sums;
  bool add_to_dgamma, add_to_dbeta;
};

// What blocks summed, a warp of columns per block and, in y, a kind of sum.
template <typename T>
__global__ void __launch_bounds__(1024) add_blocks(Added<T> to, const Accumulator<T>* sums, int blocks, int64_t dim) {
  using A = Accumulator<T>;
  __shared__ A meet[32][33];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  A total = 0;
  if (c < dim)
    for (int k = threadIdx.y; k < blocks; k += 32) total += sums[(int64_t{k} * 3 + blockIdx.y) * dim + c];
  meet[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= dim) return;
  A all = 0;
  for (int y = 0; y < 32; ++y) all += meet[y][threadIdx.x];
  if (blockIdx.y == 2) {
    to.dx_sums[c] = all;
    return;
  }
  T* place = blockIdx.y == 0 ? to.dgamma : to.dbeta;
  if (!place) return;
  const bool add = blockIdx.y == 0 ? to.add_to_dgamma : to.add_to_dbeta;
  place[c] = narrow<T>(add ? widen(place[c]) + all : all);
}

// As many blocks as there are multiprocessors.
template <typename T, int W>
void walk(const NormGradients& to, Walk<T> a, const device::Stream& stream) {
  using A = Accumulator<T>;
  device::Queue& queue = queue_of(stream);
  constexpr int kThreadsOfBlock = kWalkThreads<W>;
  constexpr size_t kShared = sizeof(Ahead<T>) * kStages * kThreadsOfBlock;
  static_assert(kShared >= sizeof(A) * kPack<T> * kThreadsOfBlock);
  ESP_CUDA_CHECK(cudaFuncSetAttribute(walk_kernel<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const int64_t blocks = std::min<int64_t>(queue.multiprocessors, ceil_div(a.rows, kRowsAtOnce<W>));
  a.sums = static_cast<A*>(queue.scratch(static_cast<size_t>(3 * blocks * a.dim) * sizeof(A)));
  walk_kernel<T, W><<<static_cast<unsigned>(blocks), kThreadsOfBlock, kShared, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
  const Added<T> added{static_cast<T*>(to.dgamma), static_cast<T*>(to.dbeta), static_cast<A*>(to.dx_sums),
                       to.add_to_dgamma, to.add_to_dbeta};
  const dim3 grid(static_cast<unsigned>(ceil_div(a.dim, 32)), a.sum_dx ? 3 : to.dbeta ? 2 : 1);
  add_blocks<T><<<grid, dim3(32, 32), 0, queue.handle>>>(added, a.sums, static_cast<int>(blocks), a.dim);
  ESP_CUDA_LAUNCHED();
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
      Walk<T> a{};
      a.dx = static_cast<T*>(to.dx);
      a.dy = static_cast<const T*>(dy);
      a.x = static_cast<const T*>(x);
      a.mean = static_cast<const A*>(mean);
      a.rstd = static_cast<const A*>(rstd);
      a.gamma = static_cast<const T*>(gamma);
      a.rows = shape.rows;
      a.dim = shape.dim;
      a.layer = shape.kind == NormKind::layer;
      a.accumulate = to.add_to_dx;
      a.sum_dx = to.dx_sums != nullptr;
      done = true;
      switch (ceil_div(packs, 32)) {
        case 1:
          return walk<T, 1>(to, a, stream);
        case 2:
          return walk<T, 2>(to, a, stream);
        case 3:
          return walk<T, 3>(to, a, stream);
        case 4:
          return walk<T, 4>(to, a, stream);
        case 5:
          return walk<T, 5>(to, a, stream);
        case 6:
          return walk<T, 6>(to, a, stream);
        case 7:
          return walk<T, 7>(to, a, stream);
        case 8:
          return walk<T, 8>(to, a, stream);
        case 9:
        case 10:
        case 11:
        case 12:
          return walk<T, 12>(to, a, stream);
        default:
          return walk<T, 16>(to, a, stream);
      }
    }
  });
  return done;
}

}  // namespace esp::kernel::cuda
