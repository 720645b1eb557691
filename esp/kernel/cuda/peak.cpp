// Theoretical peak FLOP rate of a GPU, from its clock rate and its number of multiprocessors. 16-bit types use tensor
// cores; fp32 and fp64 use CUDA cores.
#include "esp/kernel/peak.h"

#include "esp/device/cuda/check.h"
#include "esp/device/cuda/queue.h"

namespace esp::kernel::cuda {

double fma_peak(DType dtype, const device::Stream& stream) {
  const device::CudaQueue& queue = device::queue_of(stream);
  int khz = 0;
  ESP_CUDA_CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, queue.device.index));
  // FLOPs per cycle and multiprocessor, for compute capability 9.0.
  const double per_cycle = dtype == DType::bf16 || dtype == DType::f16 ? 4096 : dtype == DType::f32 ? 256 : 128;
  return per_cycle * queue.multiprocessors * khz * 1e3;
}

}  // namespace esp::kernel::cuda
