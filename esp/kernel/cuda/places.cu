// Where things lie: whole numbers one after the other, rows from one matrix to another.
#include "esp/kernel/copy.h"
#include "esp/kernel/cuda/types.cuh"
#include "esp/kernel/elementwise.h"

namespace esp::kernel::cuda {
namespace {

__global__ void count_kernel(int32_t* y, int32_t first, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = first + static_cast<int32_t>(i);
}

}  // namespace

void count_up(int32_t* y, int32_t first, int64_t count, const device::Stream& stream) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  count_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, handle_of(stream)>>>(y, first,
                                                                                                             count);
  ESP_CUDA_LAUNCHED();
}

void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream) {
  if (rows == 0 || bytes == 0) return;
  ESP_CUDA_CHECK(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, static_cast<size_t>(rows),
                                   cudaMemcpyDefault, handle_of(stream)));
}

}  // namespace esp::kernel::cuda
