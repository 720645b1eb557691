// Segments of a GPU's memory, and of host memory that it reads and writes directly.
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
    // While a graph is being recorded memory is given out in another order than in the step before, and a pool may want
    // one run more; an allocation is no part of the graph.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ESP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    ESP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    if (error == cudaSuccess) return static_cast<std::byte*>(data);
    cudaGetLastError();  // the caller reports it
    return nullptr;
  }
  void give(std::byte* data, size_t) noexcept override {
    cudaSetDevice(device_.index);
    cudaFree(data);
  }
  size_t grain() const override { return 512; }  // what vector loads and matrix units like
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
  std::string state() const override { return "the system pinned no more"; }

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
