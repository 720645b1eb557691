// Blocks process pairs of rows in turn, so that concurrent accesses are close together. Rows arrive in shared memory by
// bulk copies, three pairs ahead. A thread has the same pack of columns in every row, so the weight-gradient sums stay
// in its registers. A second kernel adds the blocks' sums in a fixed order: no atomics.
#include "esp/kernel/cuda/norm_backward.h"

#include <cuda/ptx>

#include "esp/kernel/cuda/rows.cuh"

namespace esp::kernel::cuda {
namespace {

namespace ptx = ::cuda::ptx;

template <typename T>
struct Walk {
  T* dx;
  const T *dy, *x;
  const Accumulator<T>*mean, *rstd;
  const T* gamma;
  Accumulator<T>* sums;  // [blocks, 3, dim]: of dγ, dβ and optionally dx
  int64_t rows, dim;
  bool layer, accumulate, sum_dx;
};

constexpr int kPair = 2;    // rows that meet at one barrier
constexpr int kStages = 3;  // pairs asked for ahead
// Blocks of W warps that share a multiprocessor: up to 128 registers a thread.
template <int W>
inline constexpr int kResident = W > 8 ? 1 : 16 / W;

// Pairs of rows on their way to shared memory: x, dy and, where it is added to, dx.
template <typename T>
class Ahead {
 public:
  __device__ Ahead(const Walk<T>& a, unsigned char* room, uint64_t* full) : a_(a), room_(room), full_(full) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(full_ + s, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    for (int s = 0; s < kStages; ++s) ask(blockIdx.x + int64_t{s} * gridDim.x, s);
  }

  // One thread asks for all.
  __device__ void ask(int64_t pair, int slot) {
    const int64_t row = pair * kPair;
    if (threadIdx.x != 0 || row >= a_.rows) return;
    const auto bytes = static_cast<uint32_t>(min(int64_t{kPair}, a_.rows - row) * row_bytes());
    const int64_t from = row * a_.dim;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full_ + slot,
                                   bytes * (a_.accumulate ? 3 : 2));
    copy(slot, 0, a_.x + from, bytes);
    copy(slot, 1, a_.dy + from, bytes);
    if (a_.accumulate) copy(slot, 2, a_.dx + from, bytes);
  }
  __device__ void wait(int slot, uint32_t phase) const {
    while (!ptx::mbarrier_try_wait_parity(full_ + slot, phase)) {
    }
  }
  // which: 0 x, 1 dy, 2 dx
  __device__ Pack<T, kPack<T>> pack(int slot, int which, int row, int column) const {
    return load_pack<kPack<T>>(reinterpret_cast<const T*>(place(slot, which) + row * row_bytes()) + column);
  }

 private:
  __device__ int64_t row_bytes() const { return a_.dim * int64_t{sizeof(T)}; }
  __device__ unsigned char* place(int slot, int which) const {
    return room_ + (slot * 3 + which) * kPair * row_bytes();
  }
  __device__ void copy(int slot, int which, const T* from, uint32_t bytes) {
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, place(slot, which), from, bytes, full_ + slot);
  }

  const Walk<T>& a_;
  unsigned char* room_;
  uint64_t* full_;
};

// Lane l < K gets the sum of values[l] over the warp; K is a power of two.
template <int K, typename A>
__device__ __forceinline__ A warp_sums(A (&values)[K]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = K / 2; half > 0; half /= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const A mine = upper ? values[i + half] : values[i], other = upper ? values[i] : values[i + half];
      values[i] = mine + __shfl_xor_sync(0xffffffffu, other, half);
    }
  }
#pragma unroll
  for (int offset = K; offset < 32; offset *= 2) values[0] += __shfl_xor_sync(0xffffffffu, values[0], offset);
  return values[0];
}

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]), the first mean for layer only;
// dγ = Σ dy·x̂, dβ = Σ dy.
template <typename T, int W>
__global__ void __launch_bounds__(W * 32, kResident<W>) walk_kernel(Walk<T> a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // older ones have no bulk copies; norm_backward leaves them alone
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  extern __shared__ __align__(128) unsigned char room[];
  __shared__ uint64_t full[kStages];
  __shared__ A meet[2][W][kPair][2];  // turn by turn: one barrier a pair is enough
  Ahead<T> ahead(a, room, full);
  const int c = static_cast<int>(threadIdx.x) * N;
  const bool mine = c < a.dim;
  A dgamma[N] = {}, dbeta[N] = {}, total[N] = {}, gamma[N] = {};
  if (mine) {
    const auto pack = load_pack<N>(a.gamma + c);
#pragma unroll
    for (int k = 0; k < N; ++k) gamma[k] = widen(pack.at[k]);
  }
  const A part = A{1} / static_cast<A>(a.dim);
  A next_middle[kPair], next_scale[kPair];
  const auto ask_statistics = [&](int64_t pair) {
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      const int64_t row = pair * kPair + r;
      next_middle[r] = a.mean && row < a.rows ? a.mean[row] : A{0};
      next_scale[r] = row < a.rows ? a.rstd[row] : A{0};
    }
  };
  ask_statistics(blockIdx.x);
  int turn = 0, slot = 0;
  uint32_t phase = 0;
  for (int64_t pair = blockIdx.x; pair * kPair < a.rows; pair += gridDim.x, turn ^= 1) {
    const int64_t row = pair * kPair;
    const bool both = row + 1 < a.rows;
    A middle[kPair], scale[kPair];
#pragma unroll
    for (int r = 0; r < kPair; ++r) middle[r] = next_middle[r], scale[r] = next_scale[r];
    ask_statistics(pair + gridDim.x);
    ahead.wait(slot, phase);
    A sums[2 * kPair] = {}, weighted[kPair][N], normal[kPair][N];
    Pack<T, N> old[kPair];
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      if (!mine || (r > 0 && !both)) continue;
      const auto x = ahead.pack(slot, 0, r, c), g = ahead.pack(slot, 1, r, c);
      if (a.accumulate) old[r] = ahead.pack(slot, 2, r, c);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A dy = widen(g.at[k]);
        normal[r][k] = (widen(x.at[k]) - middle[r]) * scale[r];
        weighted[r][k] = dy * gamma[k];
        sums[2 * r] += weighted[r][k];
        sums[2 * r + 1] += weighted[r][k] * normal[r][k];
        dgamma[k] += dy * normal[r][k];
        dbeta[k] += dy;
      }
    }
    const A of_warp = warp_sums(sums);
    if (const int lane = static_cast<int>(threadIdx.x) % 32; lane < 2 * kPair)
      meet[turn][threadIdx.x / 32][lane / 2][lane % 2] = of_warp;
    __syncthreads();
    ahead.ask(pair + int64_t{kStages} * gridDim.x, slot);  // all have read it
    if (++slot == kStages) slot = 0, phase ^= 1;
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      A sum_g = 0, sum_gx = 0;
#pragma unroll
      for (int w = 0; w < W; ++w) sum_g += meet[turn][w][r][0], sum_gx += meet[turn][w][r][1];
      if (!mine || (r > 0 && !both)) continue;
      const A shift = a.layer ? -scale[r] * sum_g * part : A{0}, slope = -scale[r] * sum_gx * part;
      A value[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        value[k] = slope * normal[r][k] + (scale[r] * weighted[r][k] + shift);
        if (a.accumulate) value[k] += widen(old[r].at[k]);
      }
      const auto to = narrow_all<T>(value);
      store_pack<N>(a.dx + (row + r) * a.dim + c, to);
      if (!a.sum_dx) continue;
#pragma unroll
      for (int k = 0; k < N; ++k) total[k] += widen(to.at[k]);
    }
  }
  cudaTriggerProgrammaticLaunchCompletion();  // add_blocks may be put in place meanwhile
  if (!mine) return;
  A* const to = a.sums + int64_t{blockIdx.x} * 3 * a.dim + c;
  const auto finish = [&](int which, const A(&sum)[N]) {
    Pack<A, N> all;
#pragma unroll
    for (int k = 0; k < N; ++k) all.at[k] = sum[k];
    store_pack<N>(to + which * a.dim, all);
  };
  finish(0, dgamma);
  finish(1, dbeta);
  if (a.sum_dx) finish(2, total);
#endif
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
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // it was started before what it adds up was there
#endif
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

// As many blocks as run at once.
template <typename T, int W>
void walk(const NormGradients& to, Walk<T> a, const device::Stream& stream) {
  using A = Accumulator<T>;
  device::CudaQueue& queue = queue_of(stream);
  const size_t room = sizeof(T) * 3 * kPair * kStages * static_cast<size_t>(a.dim);
  ESP_CUDA_CHECK(
      cudaFuncSetAttribute(walk_kernel<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(room)));
  const int64_t blocks = std::min<int64_t>(queue.multiprocessors * kResident<W>, ceil_div(a.rows, kPair));
  a.sums = static_cast<A*>(queue.scratch(static_cast<size_t>(3 * blocks * a.dim) * sizeof(A)));
  walk_kernel<T, W><<<static_cast<unsigned>(blocks), W * 32, room, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
  const Added<T> added{static_cast<T*>(to.dgamma), static_cast<T*>(to.dbeta), static_cast<A*>(to.dx_sums),
                       to.add_to_dgamma, to.add_to_dbeta};
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(ceil_div(a.dim, 32)), a.sum_dx ? 3 : to.dbeta ? 2 : 1);
  launch.blockDim = dim3(32, 32);
  launch.stream = queue.handle;
  launch.attrs = &early;
  launch.numAttrs = 1;
  ESP_CUDA_CHECK(cudaLaunchKernelEx(&launch, add_blocks<T>, added, static_cast<const A*>(a.sums),
                                    static_cast<int>(blocks), a.dim));
}

}  // namespace

bool norm_backward(const NormGradients& to, const void* dy, const void* x, const void* mean, const void* rstd,
                   const void* gamma, const NormShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0 || dtype == DType::f64 || !aligned(to.dx, dy, x, gamma)) return false;
  int generation = 0;
  ESP_CUDA_CHECK(cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, stream.device.index));
  if (generation < 9) return false;
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
