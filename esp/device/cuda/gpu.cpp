#include "esp/device/gpu.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/cuda/check.h"
#include "esp/device/cuda/queue.h"
#include "esp/device/is_cuda.h"

namespace esp::device {
namespace {

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

void use(Device device) {
  ESP_CUDA_CHECK(cudaSetDevice(device.index));
}

}  // namespace

void cuda_failed(cudaError_t error, const char* call, const char* file, int line) {
  cudaGetLastError();  // clears CUDA's error state; otherwise the next CUDA call would report this error again
  throw DeviceError(fmt::format("CUDA: {} ({}) in {} at {}:{}", cudaGetErrorString(error), cudaGetErrorName(error),
                                call, file, line));
}

GpuSurvey survey_gpus() {
  GpuSurvey survey;
  cudaDriverGetVersion(&survey.driver);
  cudaRuntimeGetVersion(&survey.runtime);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (survey.driver == 0) {
    survey.problem = "no NVIDIA driver is installed on this machine";
  } else if (error == cudaErrorInsufficientDriver) {
    survey.problem = fmt::format("the driver supports CUDA {}; this build needs {}. Install a newer driver",
                                 version(survey.driver), version(survey.runtime));
  } else if (error != cudaSuccess) {
    survey.problem = fmt::format("driver error: {}", cudaGetErrorString(error));
  } else if (count == 0) {
    survey.problem = "the driver sees no GPU";
  }
  for (int i = 0; error == cudaSuccess && i < count; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    survey.gpus.push_back(GpuInfo{i, p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem});
  }
  return survey;
}

Device require_gpu(Device device) {
  const GpuSurvey survey = survey_gpus();
  if (survey.gpus.empty()) throw UsageError(fmt::format("{} cannot be used: {}", name_of(device), survey.problem));
  for (const GpuInfo& gpu : survey.gpus) {
    if (gpu.index != device.index) continue;
    if (gpu.major != 9)
      throw UsageError(
          fmt::format("{} is {} of compute capability {}.{}; expected 9.0, the only one this build has code for. "
                      "Use an H100 or H200, or run.device = \"cpu\"",
                      name_of(device), gpu.name, gpu.major, gpu.minor));
    return device;
  }
  throw UsageError(
      fmt::format("device: got {}; this machine has cuda:0 to cuda:{}", name_of(device), survey.gpus.size() - 1));
}

CudaQueue::~CudaQueue() {
  if (!handle) return;
  cudaSetDevice(device.index);
  cudaStreamSynchronize(handle);
  instances_.clear();
  if (scratch_) {
    cudaFree(scratch_);
    if (account) account->remove(MemoryCategory::buffer, MemoryTier::device, scratch_bytes_);
  }
  cudaStreamDestroy(handle);
}

void* CudaQueue::scratch(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  // Wait for earlier kernels: they may still use the old scratch memory.
  ESP_CUDA_CHECK(cudaStreamSynchronize(handle));
  bytes = std::max(bytes, 2 * scratch_bytes_);
  if (scratch_) {
    ESP_CUDA_CHECK(cudaFree(scratch_));
    if (account) account->remove(MemoryCategory::buffer, MemoryTier::device, scratch_bytes_);
    scratch_ = nullptr;
    scratch_bytes_ = 0;
  }
  if (account) account->add(MemoryCategory::buffer, MemoryTier::device, bytes);
  if (const cudaError_t error = cudaMalloc(&scratch_, bytes); error != cudaSuccess) {
    if (account) account->remove(MemoryCategory::buffer, MemoryTier::device, bytes);
    cuda_failed(error, "cudaMalloc for a kernel's scratch", __FILE__, __LINE__);
  }
  scratch_bytes_ = bytes;
  return scratch_;
}

GpuQueue::GpuQueue(Device device, MemoryAccount* account, Priority priority)
    : device_(require_gpu(device)), queue_(std::make_unique<CudaQueue>()) {
  use(device);
  int lowest = 0, highest = 0;
  ESP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  ESP_CUDA_CHECK(cudaDeviceGetAttribute(&queue_->multiprocessors, cudaDevAttrMultiProcessorCount, device.index));
  ESP_CUDA_CHECK(cudaStreamCreateWithPriority(&queue_->handle, cudaStreamNonBlocking,
                                              priority == Priority::high ? highest : lowest));
  queue_->device = device;
  queue_->account = account;
}

GpuQueue::~GpuQueue() = default;

Stream GpuQueue::stream(ThreadPool* pool) const {
  return {device_, pool, queue_.get()};
}

void copy(void* to, const void* from, size_t bytes, const Stream& stream) {
  if (!is_cuda(stream)) return copy_on_host(to, from, bytes, stream);
  if (bytes == 0) return;
  ESP_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle_of(stream)));
}

void finish(const Stream& stream) {
  if (is_cuda(stream)) ESP_CUDA_CHECK(cudaStreamSynchronize(handle_of(stream)));
}

bool is_host_accessible(const void* data) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, data) == cudaSuccess) return attributes.type != cudaMemoryTypeDevice;
  cudaGetLastError();  // without a driver all memory is host memory
  return true;
}

void transfer(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  if (is_host_accessible(to) && is_host_accessible(from)) {
    std::memcpy(to, from, bytes);
    return;
  }
  ESP_CUDA_CHECK(cudaDeviceSynchronize());
  ESP_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  // a cudaMemcpy from pageable memory may return after it has read the source but before it has written the destination
  ESP_CUDA_CHECK(cudaDeviceSynchronize());
}

uint64_t free_bytes(Device device) {
  size_t free = 0, total = 0;
  use(device);
  ESP_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

bool capturing(const Stream& stream) {
  if (!is_cuda(stream)) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ESP_CUDA_CHECK(cudaStreamIsCapturing(handle_of(stream), &status));
  return status == cudaStreamCaptureStatusActive;
}

}  // namespace esp::device
