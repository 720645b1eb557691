// Softmax over rows of stored scores, and its gradient: a block per row.
#include "esp/kernel/softmax.h"

#include "esp/kernel/cuda/soft_row.cuh"

namespace esp::kernel::cuda {
namespace {

constexpr int kBlock = 128;

__device__ __forceinline__ int64_t visible_of(const SoftmaxShape& shape, int64_t row) {
  const int64_t i = shape.period ? row % shape.period : row;
  const int64_t seen = shape.causal && i + 1 < shape.length ? i + 1 : shape.length;
  return seen < shape.cols ? seen : shape.cols;
}

template <int N, typename T>
__global__ void __launch_bounds__(kBlock) forward_kernel(T* scores, SoftmaxShape shape) {
  using A = Accumulator<T>;
  __shared__ A meet[2][kBlock / 32];
  T* row = scores + int64_t{blockIdx.x} * shape.cols;
  const int64_t n = visible_of(shape, blockIdx.x);
  SoftSum<A> mine;
  walk_row<kBlock, N>(n, [&](auto width, int64_t c) { mine.take(load_pack<width()>(row + c)); });
  const SoftSum<A> all = merged<kBlock>(mine, meet);
  const A inverse = A{1} / all.sum, scaled = all.top * kLog2E<A>;
  walk_row<kBlock, N>(shape.cols, [&](auto width, int64_t c) {
    auto pack = load_pack<width()>(row + c);
#pragma unroll
    for (int k = 0; k < width(); ++k)
      pack.at[k] = narrow<T>(c + k < n ? share_of(widen(pack.at[k]), scaled, inverse) : A{0});
    store_pack<width()>(row + c, pack);
  });
}

template <int N, typename T>
__global__ void __launch_bounds__(kBlock) backward_kernel(T* d, const T* p, SoftmaxShape shape) {
  using A = Accumulator<T>;
  __shared__ A meet[kBlock / 32];
  T* row = d + int64_t{blockIdx.x} * shape.cols;
  const T* of = p + int64_t{blockIdx.x} * shape.cols;
  const int64_t n = visible_of(shape, blockIdx.x);
  A mean[1] = {};
  walk_row<kBlock, N>(n, [&](auto width, int64_t c) {
    const auto g = load_pack<width()>(row + c), q = load_pack<width()>(of + c);
#pragma unroll
    for (int k = 0; k < width(); ++k) mean[0] += widen(g.at[k]) * widen(q.at[k]);
  });
  row_sums<kBlock>(mean, meet);
  walk_row<kBlock, N>(shape.cols, [&](auto width, int64_t c) {
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
    if (shape.cols % kPack<T> == 0 && aligned(scores))
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
