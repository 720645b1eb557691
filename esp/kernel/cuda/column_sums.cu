// Column sums of a matrix: gradients of biases and of norm weights.
//
// Rows are split into chunks. A thread block sums one chunk of up to 32 packs of columns (a pack is a 16-byte vector of
// elements), eight rows at a time, and writes the sums to scratch memory. A second kernel adds the sums of the chunks.
// The chunks depend only on the shape and the GPU, and every sum has a fixed order without atomics. Results are
// therefore deterministic (bit-identical when repeated).
#include "esp/kernel/cuda/column_sums.h"

#include "esp/kernel/elementwise.h"
#include "esp/kernel/norm.h"

#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/tile_sums.cuh"

namespace esp::kernel::cuda {
namespace {

template <typename T>
struct Columns {
  const T *dy, *x;  // x, mean and rstd: used only for the weight gradients of a norm
  const Accumulator<T>*mean, *rstd;
  int64_t rows, cols, rows_per_chunk;
  Accumulator<T>*sums, *dots;  // [chunks, cols]; dots only for a norm
};

// Per chunk and column: sums = Σ dy and, for a norm, dots = Σ dy·(x − mean)·rstd.
template <typename T, int N, bool kNorm>
__global__ void __launch_bounds__(kAcross* kDown) chunk_sums(Columns<T> a) {
  using A = Accumulator<T>;
  __shared__ A partials[kDown][kAcross * N];
  const int64_t c = (int64_t{blockIdx.x} * kAcross + threadIdx.x) * N;
  const int64_t begin = blockIdx.y * a.rows_per_chunk, end = min(a.rows, begin + a.rows_per_chunk);
  A sum[N] = {}, dot[N] = {};
  if (c < a.cols) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kDown) {
      const auto dy = load_pack<N>(a.dy + r * a.cols + c);
      if constexpr (kNorm) {
        const auto x = load_pack<N>(a.x + r * a.cols + c);
        const A middle = a.mean ? a.mean[r] : A{0}, scale = a.rstd[r];
#pragma unroll
        for (int k = 0; k < N; ++k) dot[k] += widen(dy.at[k]) * ((widen(x.at[k]) - middle) * scale);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += widen(dy.at[k]);
    }
  }
  auto finish = [&](A* to, const A(&mine)[N]) {
    sum_down(mine, partials, [&](int i, A total) {
      if (const int64_t column = int64_t{blockIdx.x} * kAcross * N + i; column < a.cols)
        to[blockIdx.y * a.cols + column] = total;
    });
  };
  if (a.sums) finish(a.sums, sum);
  if constexpr (kNorm) finish(a.dots, dot);
}

// Computes to[c] = Σ_chunk sums[chunk][c], or adds the sum to to[c]. A block processes as many columns as a warp has
// lanes.
template <typename T>
__global__ void __launch_bounds__(1024)
    add_chunks(T* to, bool accumulate, const Accumulator<T>* sums, int64_t chunks, int64_t cols) {
  using A = Accumulator<T>;
  __shared__ A partials[32][33];
  const int64_t c = int64_t{blockIdx.x} * 32 + threadIdx.x;
  A total = 0;
  if (c < cols)
    for (int64_t k = threadIdx.y; k < chunks; k += 32) total += sums[k * cols + c];
  partials[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  A all = accumulate ? widen(to[c]) : A{0};
  for (int y = 0; y < 32; ++y) all += partials[y][threadIdx.x];
  to[c] = narrow<T>(all);
}

template <typename T>
void launch_add(T* to, bool accumulate, const Accumulator<T>* sums, int64_t chunks, int64_t cols, cudaStream_t queue) {
  add_chunks<T>
      <<<static_cast<unsigned>(ceil_div(cols, 32)), dim3(32, 32), 0, queue>>>(to, accumulate, sums, chunks, cols);
  ESP_CUDA_LAUNCHED();
}

template <typename T, bool kNorm>
void add_columns(T* to_sums, T* to_dots, bool accumulate, Columns<T> a, const device::Stream& stream) {
  using A = Accumulator<T>;
  if (a.rows == 0 || a.cols == 0) return;
  device::CudaQueue& queue = queue_of(stream);
  const bool packed = a.cols % kPack<T> == 0 && aligned(a.dy, a.x);
  const int64_t tiles = ceil_div(a.cols, kAcross * (packed ? kPack<T> : 1));
  // Launches as many blocks as the GPU can run at the same time. A few more blocks would run in a second wave and leave
  // most of the GPU idle.
  auto* kernel = packed ? chunk_sums<T, kPack<T>, kNorm> : chunk_sums<T, 1, kNorm>;
  int resident = 0;
  ESP_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kAcross * kDown, 0));
  const int64_t wanted = std::max<int64_t>(1, int64_t{queue.multiprocessors} * resident / tiles);
  a.rows_per_chunk = std::max<int64_t>(4 * kDown, ceil_div(ceil_div(a.rows, wanted), kDown) * kDown);
  const int64_t chunks = ceil_div(a.rows, a.rows_per_chunk);
  A* scratch = static_cast<A*>(queue.scratch(2 * chunks * a.cols * sizeof(A)));
  a.sums = to_sums ? scratch : nullptr;
  a.dots = scratch + chunks * a.cols;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks)), block(kAcross, kDown);
  kernel<<<grid, block, 0, queue.handle>>>(a);
  ESP_CUDA_LAUNCHED();
  if (to_sums) launch_add(to_sums, accumulate, a.sums, chunks, a.cols, queue.handle);
  if (to_dots) launch_add(to_dots, accumulate, a.dots, chunks, a.cols, queue.handle);
}

}  // namespace

void add_chunk_sums(void* to, bool accumulate, const void* sums, int64_t chunks, int64_t cols, DType dtype,
                    const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    launch_add(static_cast<T*>(to), accumulate, static_cast<const Accumulator<T>*>(sums), chunks, cols,
               handle_of(stream));
  });
}

void column_sums_to(void* to, bool accumulate, const void* dy, int64_t rows, int64_t cols, DType dtype,
                    const device::Stream& stream) {
  if (rows == 0 && !accumulate)
    ESP_CUDA_CHECK(cudaMemsetAsync(to, 0, static_cast<size_t>(cols) * size_of(dtype), handle_of(stream)));
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    Columns<T> a{};
    a.dy = static_cast<const T*>(dy);
    a.rows = rows;
    a.cols = cols;
    add_columns<T, false>(static_cast<T*>(to), nullptr, accumulate, a, stream);
  });
}

void add_column_sums(void* dbias, const void* dy, int64_t rows, int64_t cols, DType dtype,
                     const device::Stream& stream) {
  column_sums_to(dbias, true, dy, rows, cols, dtype, stream);
}

void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    Columns<T> a{};
    a.dy = static_cast<const T*>(dy);
    a.x = static_cast<const T*>(x);
    a.mean = static_cast<const A*>(mean);
    a.rstd = static_cast<const A*>(rstd);
    a.rows = shape.rows;
    a.cols = shape.dim;
    add_columns<T, true>(static_cast<T*>(dbeta), static_cast<T*>(dgamma), true, a, stream);
  });
}

}  // namespace esp::kernel::cuda
