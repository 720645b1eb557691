// All gradients of a norm in one pass over the rows. Thread blocks take pairs of rows in turn, so that accesses at the
// same time are close together in memory. Rows are copied to shared memory by bulk copies (TMA), three pairs ahead. A
// thread processes the same pack of columns in every row, so its sums for the weight gradients stay in registers. A
// second kernel adds the sums of the blocks in a fixed order, without atomics.
#include "esp/kernel/cuda/norm_backward.h"

#include <cuda/ptx>

#include "esp/kernel/cuda/row_reduce.cuh"

namespace esp::kernel::cuda {
namespace {

namespace ptx = ::cuda::ptx;

template <typename T>
struct NormBackwardArgs {
  T* dx;
  const T *dy, *x;
  const Accumulator<T>*mean, *rstd;
  const T* gamma;
  Accumulator<T>* sums;  // [blocks, 3, dim]: sums for dγ, sums for dβ, and optionally column sums of dx
  int64_t rows, dim;
  bool layer, accumulate, sum_dx;
};

constexpr int kPair = 2;    // rows that are processed between two barriers
constexpr int kStages = 3;  // pairs of rows that are copied ahead
// Number of blocks of W warps that a multiprocessor runs at once, with up to 128 registers per thread.
template <int W>
inline constexpr int kResident = W > 8 ? 1 : 16 / W;

// Asynchronous copies of pairs of rows to shared memory: rows of x, of dy and, if the kernel adds to dx, of dx.
template <typename T>
class RowPipeline {
 public:
  __device__ RowPipeline(const NormBackwardArgs<T>& a, unsigned char* room, uint64_t* full)
      : a_(a), room_(room), full_(full) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) ptx::mbarrier_init(full_ + s, 1);
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncthreads();
    for (int s = 0; s < kStages; ++s) start_copy(blockIdx.x + int64_t{s} * gridDim.x, s);
  }

  // One thread starts all copies of a pair.
  __device__ void start_copy(int64_t pair, int slot) {
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
  // `which` selects the tensor: 0 is x, 1 is dy, 2 is dx.
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

  const NormBackwardArgs<T>& a_;
  unsigned char* room_;
  uint64_t* full_;
};

// Sums K values over a warp. Lane l < K returns the sum of values[l]. K is a power of two.
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

// With x̂ = (x − mean)·rstd and g = dy·γ: dx = rstd·(g − [mean of g] − x̂·[mean of g·x̂]), dγ = Σ dy·x̂, dβ = Σ dy.
// RMSNorm has no [mean of g].
template <typename T, int W>
__global__ void __launch_bounds__(W * 32, kResident<W>) norm_backward_kernel(NormBackwardArgs<T> a) {
// GPUs before compute capability 9.0 have no bulk copies; norm_backward returns false for them
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  extern __shared__ __align__(128) unsigned char room[];
  __shared__ uint64_t full[kStages];
  __shared__ A partials[2][W][kPair][2];  // two buffers, used alternately, so that one barrier per pair is enough
  RowPipeline<T> pipeline(a, room, full);
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
  const auto load_statistics = [&](int64_t pair) {
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      const int64_t row = pair * kPair + r;
      next_middle[r] = a.mean && row < a.rows ? a.mean[row] : A{0};
      next_scale[r] = row < a.rows ? a.rstd[row] : A{0};
    }
  };
  load_statistics(blockIdx.x);
  int turn = 0, slot = 0;
  uint32_t phase = 0;
  for (int64_t pair = blockIdx.x; pair * kPair < a.rows; pair += gridDim.x, turn ^= 1) {
    const int64_t row = pair * kPair;
    const bool both = row + 1 < a.rows;
    A middle[kPair], scale[kPair];
#pragma unroll
    for (int r = 0; r < kPair; ++r) middle[r] = next_middle[r], scale[r] = next_scale[r];
    load_statistics(pair + gridDim.x);
    pipeline.wait(slot, phase);
    A sums[2 * kPair] = {}, weighted[kPair][N], normal[kPair][N];
    Pack<T, N> old[kPair];
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      if (!mine || (r > 0 && !both)) continue;
      const auto x = pipeline.pack(slot, 0, r, c), g = pipeline.pack(slot, 1, r, c);
      if (a.accumulate) old[r] = pipeline.pack(slot, 2, r, c);
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
      partials[turn][threadIdx.x / 32][lane / 2][lane % 2] = of_warp;
    __syncthreads();
    pipeline.start_copy(pair + int64_t{kStages} * gridDim.x, slot);  // the slot is free: all threads have read its pair
    if (++slot == kStages) slot = 0, phase ^= 1;
#pragma unroll
    for (int r = 0; r < kPair; ++r) {
      A sum_g = 0, sum_gx = 0;
#pragma unroll
      for (int w = 0; w < W; ++w) sum_g += partials[turn][w][r][0], sum_gx += partials[turn][w][r][1];
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
  cudaTriggerProgrammaticLaunchCompletion();  // allows the GPU to start add_blocks early
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
struct AddBlockSums {
  T *dgamma, *dbeta;
  Accumulator<T>* dx_sums;
  bool add_to_dgamma, add_to_dbeta;
};

// Adds the sums of all blocks. blockIdx.x selects 32 columns. blockIdx.y selects the sum: dγ, dβ or dx.
template <typename T>
__global__ void __launch_bounds__(1024)
    add_blocks(AddBlockSums<T> to, const Accumulator<T>* sums, int blocks, int64_t dim) {
  using A = Accumulator<T>;
  __shared__ A partials[32][33];
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();  // this kernel starts early, so it waits until the sums are written
#endif
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  A total = 0;
  if (c < dim)
    for (int k = threadIdx.y; k < blocks; k += 32) total += sums[(int64_t{k} * 3 + blockIdx.y) * dim + c];
  partials[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= dim) return;
  A all = 0;
  for (int y = 0; y < 32; ++y) all += partials[y][threadIdx.x];
  if (blockIdx.y == 2) {
    to.dx_sums[c] = all;
    return;
  }
  T* place = blockIdx.y == 0 ? to.dgamma : to.dbeta;
  if (!place) return;
  const bool add = blockIdx.y == 0 ? to.add_to_dgamma : to.add_to_dbeta;
  place[c] = narrow<T>(add ? widen(place[c]) + all : all);
}

// Launches as many blocks as the GPU can run at the same time.
template <typename T, int W>
void launch_norm_backward(const NormGradients& to, NormBackwardArgs<T> a, const device::Stream& stream) {
  using A = Accumulator<T>;
  device::CudaQueue& queue = queue_of(stream);
  const size_t room = sizeof(T) * 3 * kPair * kStages * static_cast<size_t>(a.dim);
  ESP_CUDA_CHECK(cudaFuncSetAttribute(norm_backward_kernel<T, W>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(room)));
  const int64_t blocks = std::min<int64_t>(queue.multiprocessors * kResident<W>, ceil_div(a.rows, kPair));
  a.sums = static_cast<A*>(queue.scratch(static_cast<size_t>(3 * blocks * a.dim) * sizeof(A)));
  norm_backward_kernel<T, W><<<static_cast<unsigned>(blocks), W * 32, room, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
  const AddBlockSums<T> added{static_cast<T*>(to.dgamma), static_cast<T*>(to.dbeta), static_cast<A*>(to.dx_sums),
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
      NormBackwardArgs<T> a{};
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
          return launch_norm_backward<T, 1>(to, a, stream);
        case 2:
          return launch_norm_backward<T, 2>(to, a, stream);
        case 3:
          return launch_norm_backward<T, 3>(to, a, stream);
        case 4:
          return launch_norm_backward<T, 4>(to, a, stream);
        case 5:
          return launch_norm_backward<T, 5>(to, a, stream);
        case 6:
          return launch_norm_backward<T, 6>(to, a, stream);
        case 7:
          return launch_norm_backward<T, 7>(to, a, stream);
        case 8:
          return launch_norm_backward<T, 8>(to, a, stream);
        case 9:
        case 10:
        case 11:
        case 12:
          return launch_norm_backward<T, 12>(to, a, stream);
        default:
          return launch_norm_backward<T, 16>(to, a, stream);
      }
    }
  });
  return done;
}

}  // namespace esp::kernel::cuda
