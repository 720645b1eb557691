// Softmax over stored attention scores, and its gradient. Rows of up to 512 packs (16-byte vectors) stay in the
// registers of 32 or 128 threads. For longer rows and for fp64, one thread block per row reads the row twice.
#include "esp/kernel/softmax.h"

#include "esp/kernel/cuda/online_softmax.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kBlock = 128;

__device__ __forceinline__ int64_t visible_of(const SoftmaxShape& shape, int64_t row) {
  const int64_t i = shape.period ? row % shape.period : row;
  const int64_t seen = shape.causal && i + 1 < shape.length ? i + 1 : shape.length;
  return seen < shape.cols ? seen : shape.cols;
}

// Returns the largest value over the R threads of a row, in every thread.
template <int R>
__device__ __forceinline__ float row_max(float value, float* partials) {
  value = warp_max(value);
  if constexpr (R > 32) {
    const int first = static_cast<int>(threadIdx.x) / R * (R / 32);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < R / 32; ++w) value = fmaxf(value, partials[first + w]);
  }
  return value;
}

template <typename T, int R, int P>
__global__ void __launch_bounds__(kRowThreads<R>) forward_rows(T* scores, SoftmaxShape shape) {
  constexpr int N = kPack<T>;
  __shared__ float partials[2][kRowThreads<R> / 32];
  const int lane = threadIdx.x % R;
  const int64_t r = int64_t{blockIdx.x} * kRowsPerBlock<R> + threadIdx.x / R;
  const int64_t n = r < shape.rows ? visible_of(shape, r) : 0, cols = r < shape.rows ? shape.cols : 0;
  T* row = scores + r * shape.cols;
  Pack<T, N> in[P];
  float x[P][N], highest = -INFINITY, sum[1] = {};
#pragma unroll
  for (int p = 0; p < P; ++p)
    if ((lane + p * R) * N < n) in[p] = load_pack<N>(row + (lane + p * R) * N);
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[p][k] = (lane + p * R) * N + k < n ? widen(in[p].at[k]) * kLog2E<float> : -INFINITY;
      highest = fmaxf(highest, x[p][k]);
    }
  }
  highest = row_max<R>(highest, partials[0]);
  if (highest == -INFINITY) highest = 0;  // the row has no visible column, or only −∞ and NaN
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[p][k] = power_of_two(x[p][k] - highest);
      sum[0] += x[p][k];
    }
  }
  row_sums<R>(sum, partials[1]);
  const float inverse = 1 / sum[0];
#pragma unroll
  for (int p = 0; p < P; ++p)
    if ((lane + p * R) * N < cols) {
#pragma unroll
      for (int k = 0; k < N; ++k) in[p].at[k] = narrow<T>((lane + p * R) * N + k < n ? x[p][k] * inverse : 0.0f);
      store_pack<N>(row + (lane + p * R) * N, in[p]);
    }
}

template <int N, typename T>
__global__ void __launch_bounds__(kBlock) forward_kernel(T* scores, SoftmaxShape shape) {
  using A = Accumulator<T>;
  __shared__ A partials[2][kBlock / 32];
  T* row = scores + int64_t{blockIdx.x} * shape.cols;
  const int64_t n = visible_of(shape, blockIdx.x);
  SoftmaxSum<A> mine;
  for_row_packs<kBlock, N>(n, [&](auto width, int64_t c) { mine.take(load_pack<width()>(row + c)); });
  const SoftmaxSum<A> all = merge_sums<kBlock>(mine, partials);
  const A inverse = A{1} / all.sum, scaled = all.top * kLog2E<A>;
  for_row_packs<kBlock, N>(shape.cols, [&](auto width, int64_t c) {
    auto pack = load_pack<width()>(row + c);
#pragma unroll
    for (int k = 0; k < width(); ++k)
      pack.at[k] = narrow<T>(c + k < n ? probability_of(widen(pack.at[k]), scaled, inverse) : A{0});
    store_pack<width()>(row + c, pack);
  });
}

template <int N, typename T>
__global__ void __launch_bounds__(kBlock) backward_kernel(T* d, const T* p, SoftmaxShape shape) {
  using A = Accumulator<T>;
  __shared__ A partials[kBlock / 32];
  T* row = d + int64_t{blockIdx.x} * shape.cols;
  const T* of = p + int64_t{blockIdx.x} * shape.cols;
  const int64_t n = visible_of(shape, blockIdx.x);
  A mean[1] = {};
  for_row_packs<kBlock, N>(n, [&](auto width, int64_t c) {
    const auto g = load_pack<width()>(row + c), q = load_pack<width()>(of + c);
#pragma unroll
    for (int k = 0; k < width(); ++k) mean[0] += widen(g.at[k]) * widen(q.at[k]);
  });
  row_sums<kBlock>(mean, partials);
  for_row_packs<kBlock, N>(shape.cols, [&](auto width, int64_t c) {
    auto g = load_pack<width()>(row + c);
    const auto q = load_pack<width()>(of + c);
#pragma unroll
    for (int k = 0; k < width(); ++k)
      g.at[k] = narrow<T>(c + k < n ? widen(q.at[k]) * (widen(g.at[k]) - mean[0]) : A{0});
    store_pack<width()>(row + c, g);
  });
}

}  // namespace

void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const auto grid = static_cast<unsigned>(shape.rows);
    const bool packed = shape.cols % kPack<T> == 0 && aligned(scores);
    if constexpr (sizeof(T) < 8) {
      auto rows = [&](auto threads, auto packs) {
        const auto blocks = static_cast<unsigned>(ceil_div(shape.rows, kRowsPerBlock<threads()>));
        forward_rows<T, threads(), packs()>
            <<<blocks, kRowThreads<threads()>, 0, handle_of(stream)>>>(static_cast<T*>(scores), shape);
        ESP_CUDA_LAUNCHED();
      };
      if (packed && shape.cols / kPack<T> <= 512 && with_row_split(shape.cols / kPack<T>, rows)) return;
    }
    if (packed)
      forward_kernel<kPack<T>><<<grid, kBlock, 0, handle_of(stream)>>>(static_cast<T*>(scores), shape);
    else
      forward_kernel<1><<<grid, kBlock, 0, handle_of(stream)>>>(static_cast<T*>(scores), shape);
    ESP_CUDA_LAUNCHED();
  });
}

void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype, const device::Stream& stream) {
  if (shape.rows == 0) return;
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    const auto grid = static_cast<unsigned>(shape.rows);
    T* to = static_cast<T*>(d);
    const T* of = static_cast<const T*>(p);
    if (shape.cols % kPack<T> == 0 && aligned(d, p))
      backward_kernel<kPack<T>><<<grid, kBlock, 0, handle_of(stream)>>>(to, of, shape);
    else
      backward_kernel<1><<<grid, kBlock, 0, handle_of(stream)>>>(to, of, shape);
    ESP_CUDA_LAUNCHED();
  });
}

}  // namespace esp::kernel::cuda
