// Segment sources: GPU memory, and pinned host memory that the GPU accesses directly.
#include <fmt/format.h>

#include "esp/device/cuda/check.h"
#include "esp/device/gpu.h"

namespace esp::device {
namespace {

class GpuMemory final : public SegmentSource {
 public:
  explicit GpuMemory(Device device) : device_(device) {}
  std::byte* take(size_t bytes) override {
    ESP_CUDA_CHECK(cudaSetDevice(device_.index));
    // A pool may need another segment during the capture of a CUDA graph, because the captured step allocates in a
    // different order than the previous step. Relaxed capture mode permits this cudaMalloc, which does not become part
    // of the graph.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ESP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    ESP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    if (error == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();  // clears CUDA's error state; the caller reports the failure
    return nullptr;
  }
  void give(std::byte* data, size_t) noexcept override {
    cudaSetDevice(device_.index);
    cudaFree(data);
  }
  size_t grain() const override { return 512; }  // alignment for vector loads and tensor cores
  std::string state() const override {
    return fmt::format("{} has {} bytes free", name_of(device_), free_bytes(device_));
  }

 private:
  Device device_;
};

class PinnedMemory final : public SegmentSource {
 public:
  explicit PinnedMemory(Device device) : device_(device) {}
  std::byte* take(size_t bytes) override {
    ESP_CUDA_CHECK(cudaSetDevice(device_.index));
    void* data = nullptr;
    if (cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable) == cudaSuccess)
      return static_cast<std::byte*>(data);
    cudaGetLastError();
    return nullptr;
  }
  void give(std::byte* data, size_t) noexcept override { cudaFreeHost(data); }
  size_t grain() const override { return 512; }
  std::string state() const override { return "the driver cannot pin more host memory"; }

 private:
  Device device_;
};

}  // namespace

std::unique_ptr<SegmentSource> gpu_memory(Device device) {
  return std::make_unique<GpuMemory>(device);
}
std::unique_ptr<SegmentSource> pinned_memory(Device device) {
  return std::make_unique<PinnedMemory>(device);
}

}  // namespace esp::device
