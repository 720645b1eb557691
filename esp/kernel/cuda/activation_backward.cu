// Kernels of activation_backward.h. A thread block processes up to 32 packs of columns (a pack is a 16-byte vector of
// elements) for one chunk of the rows, with eight threads along the rows. The grid has as many blocks as the GPU can
// run at the same time. Column sums stay in registers until the end of the chunk; column_sums.h then adds the sums of
// the chunks in a fixed order.
#include "esp/kernel/cuda/activation_backward.h"

#include "esp/kernel/cuda/activation.cuh"
#include "esp/kernel/cuda/column_sums.h"
#include "esp/kernel/cuda/elements.cuh"
#include "esp/kernel/cuda/tile_sums.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kAhead = 2;

template <typename T>
struct ActivationBackwardArgs {
  T *d, *pre;
  int64_t rows, cols, rows_per_chunk;
  Accumulator<T>* sums;  // column sums per chunk, [chunks, cols]; may be null
};

template <typename T, int N, Activation kind, bool kRecompute>
__global__ void __launch_bounds__(kAcross* kDown, 4) activation_backward_kernel(ActivationBackwardArgs<T> a) {
  using A = Accumulator<T>;
  __shared__ A partials[kDown][kAcross * N];
  const int64_t c = (int64_t{blockIdx.x} * kAcross + threadIdx.x) * N;
  const int64_t begin = blockIdx.y * a.rows_per_chunk, end = min(a.rows, begin + a.rows_per_chunk);
  A sum[N] = {};
  if (c < a.cols)
    for (int64_t first = begin + threadIdx.y; first < end; first += kDown * kAhead) {
      Pack<T, N> d[kAhead], pre[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (const int64_t r = first + u * kDown; r < end) {
          d[u] = load_pack<N>(a.d + r * a.cols + c);
          pre[u] = load_pack<N>(a.pre + r * a.cols + c);
        }
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (const int64_t r = first + u * kDown; r < end) {
          A value[N], gradient[N];
#pragma unroll
          for (int k = 0; k < N; ++k) {
            A derivative;
            activate_with_derivative<kind, sizeof(T) == 2>(widen(pre[u].at[k]), value[k], derivative);
            gradient[k] = widen(d[u].at[k]) * derivative;
          }
          const auto rounded = narrow_all<T>(gradient);
          store_pack<N>(a.d + r * a.cols + c, rounded);
          if constexpr (kRecompute) store_pack<N>(a.pre + r * a.cols + c, narrow_all<T>(value));
#pragma unroll
          for (int k = 0; k < N; ++k) sum[k] += widen(rounded.at[k]);
        }
    }
  if (!a.sums) return;
  sum_down(sum, partials, [&](int i, A total) {
    if (const int64_t column = int64_t{blockIdx.x} * kAcross * N + i; column < a.cols)
      a.sums[blockIdx.y * a.cols + column] = total;
  });
}

// SwiGLU backward over rows of `per_row` packs.
template <typename T, int N>
struct SwigluBackwardOp {
  struct Inputs {
    Pack<T, N> gate, up, d;
  };
  T *d, *pre;
  int64_t per_row;
  __device__ int64_t at(int64_t i) const {
    const auto [row, col] = divide(i, per_row);
    return (row * 2 * per_row + col) * N;
  }
  __device__ Inputs load(int64_t i) const {
    return {load_pack<N>(pre + at(i)), load_pack<N>(pre + at(i) + per_row * N), load_pack<N>(d + i * N)};
  }
  __device__ void apply(int64_t i, const Inputs& in) const {
    Pack<T, N> gate, up, product;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const auto g = widen(in.gate.at[k]), u = widen(in.up.at[k]), by = widen(in.d.at[k]);
      const auto value = activate<Activation::silu>(g);
      gate.at[k] = narrow<T>(by * u * derivative_of<Activation::silu>(g));
      up.at[k] = narrow<T>(by * value);
      product.at[k] = narrow<T>(value * u);
    }
    store_pack<N>(pre + at(i), gate);
    store_pack<N>(pre + at(i) + per_row * N, up);
    store_pack<N>(d + i * N, product);
  }
};

}  // namespace

void activation_backward_fused(void* d, void* pre, bool recompute_output, int64_t rows, int64_t cols,
                               Activation activation, void* db, bool add_to_db, DType dtype,
                               const device::Stream& stream) {
  if (rows == 0 || cols == 0) {
    if (db) column_sums_to(db, add_to_db, d, rows, cols, dtype, stream);
    return;
  }
  device::CudaQueue& queue = queue_of(stream);
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    with_activation(activation, [&](auto kind) {
      using A = Accumulator<T>;
      const bool packed = cols % kPack<T> == 0 && aligned(d, pre);
      auto* kernel = recompute_output ? packed ? activation_backward_kernel<T, kPack<T>, kind(), true>
                                               : activation_backward_kernel<T, 1, kind(), true>
                     : packed ? activation_backward_kernel<T, kPack<T>, kind(), false>
                                      : activation_backward_kernel<T, 1, kind(), false>;
      const int64_t tiles = ceil_div(cols, kAcross * (packed ? kPack<T> : 1));
      int resident = 0;
      ESP_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kAcross * kDown, 0));
      const int64_t wanted = std::max<int64_t>(1, int64_t{queue.multiprocessors} * resident / tiles);
      ActivationBackwardArgs<T> a{static_cast<T*>(d), static_cast<T*>(pre), rows, cols, 0, nullptr};
      constexpr int64_t kStep = kDown * kAhead;
      a.rows_per_chunk = std::max<int64_t>(2 * kStep, ceil_div(ceil_div(rows, wanted), kStep) * kStep);
      const int64_t chunks = ceil_div(rows, a.rows_per_chunk);
      if (db) a.sums = static_cast<A*>(queue.scratch(static_cast<size_t>(chunks * cols) * sizeof(A)));
      kernel<<<dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks)), dim3(kAcross, kDown), 0,
               queue.handle>>>(a);
      ESP_CUDA_LAUNCHED();
      if (db) add_chunk_sums(db, add_to_db, a.sums, chunks, cols, dtype, stream);
    });
  });
}

void swiglu_backward_fused(void* d, void* pre, int64_t rows, int64_t width, DType dtype, const device::Stream& stream) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    T *by = static_cast<T*>(d), *both = static_cast<T*>(pre);
    if (aligned(d, pre) && width % kPack<T> == 0)
      launch_pass<1>(SwigluBackwardOp<T, kPack<T>>{by, both, width / kPack<T>}, rows * width / kPack<T>,
                     handle_of(stream));
    else
      launch_pass<1>(SwigluBackwardOp<T, 1>{by, both, width}, rows * width, handle_of(stream));
  });
}

}  // namespace esp::kernel::cuda
