// Index kernels: iota, shift, and copies of rows between matrices.
#include "esp/kernel/copy.h"
#include "esp/kernel/cuda/types.cuh"
#include "esp/kernel/elementwise.h"

namespace esp::kernel::cuda {
namespace {

__global__ void count_kernel(int32_t* y, int32_t first, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = first + static_cast<int32_t>(i);
}

__global__ void shift_kernel(int32_t* y, const int32_t* x, int32_t by, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] + by;
}

template <typename To, typename From>
__global__ void cast_rows_kernel(To* y, int64_t y_stride, const From* x, int64_t x_stride, int64_t width) {
  const int64_t r = blockIdx.x;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x)
    y[r * y_stride + i] = narrow<To>(static_cast<Accumulator<To>>(widen(x[r * x_stride + i])));
}

constexpr int kThreads = 256;
unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void shift(int32_t* y, const int32_t* x, int32_t by, int64_t count, const device::Stream& stream) {
  if (count == 0) return;
  shift_kernel<<<blocks_for(count), kThreads, 0, handle_of(stream)>>>(y, x, by, count);
  ESP_CUDA_LAUNCHED();
}

void cast_rows(void* y, DType to, int64_t y_stride, const void* x, DType from, int64_t x_stride, int64_t rows,
               int64_t width, const device::Stream& stream) {
  if (rows == 0 || width == 0) return;
  const auto bytes = [](int64_t count, DType type) { return static_cast<size_t>(count) * size_of(type); };
  if (to == from) return copy_rows(y, bytes(y_stride, to), x, bytes(x_stride, to), bytes(width, to), rows, stream);
  with_floating(to, [&]<typename To>(std::type_identity<To>) {
    with_floating(from, [&]<typename From>(std::type_identity<From>) {
      cast_rows_kernel<<<static_cast<unsigned>(rows), kThreads, 0, handle_of(stream)>>>(
          static_cast<To*>(y), y_stride, static_cast<const From*>(x), x_stride, width);
    });
  });
  ESP_CUDA_LAUNCHED();
}

void iota(int32_t* y, int32_t first, int64_t count, const device::Stream& stream) {
  if (count == 0) return;
  count_kernel<<<blocks_for(count), kThreads, 0, handle_of(stream)>>>(y, first, count);
  ESP_CUDA_LAUNCHED();
}

void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream) {
  if (rows == 0 || bytes == 0) return;
  ESP_CUDA_CHECK(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, static_cast<size_t>(rows),
                                   cudaMemcpyDefault, handle_of(stream)));
}

}  // namespace esp::kernel::cuda
