// Stubs for builds without CUDA: no GPUs exist, and requesting one throws an error with the reason.
#include <cstring>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/device/gpu.h"
#include "esp/device/host_pool.h"
#include "esp/device/is_cuda.h"

namespace esp::device {
namespace {

constexpr const char* kWhy = "this espalier was built without CUDA (configure with -DESP_CUDA=ON)";

}  // namespace

struct CudaQueue {};

GpuSurvey survey_gpus() {
  return {{}, kWhy, 0, 0};
}

Device require_gpu(Device device) {
  throw UsageError(fmt::format("{} cannot be used: {}", name_of(device), kWhy));
}

GpuQueue::GpuQueue(Device device, MemoryAccount*, Priority) : device_(require_gpu(device)) {}
GpuQueue::~GpuQueue() = default;
Stream GpuQueue::stream(ThreadPool* pool) const {
  return {device_, pool, queue_.get()};
}

void copy(void* to, const void* from, size_t bytes, const Stream& stream) {
  copy_on_host(to, from, bytes, stream);
}
void finish(const Stream&) {}
bool is_host_accessible(const void*) {
  return true;
}
void transfer(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
uint64_t free_bytes(Device) {
  return 0;
}
bool capturing(const Stream&) {
  return false;
}

GpuEvent::GpuEvent(Device, bool) {}
GpuEvent::~GpuEvent() = default;
GpuEvent::GpuEvent(GpuEvent&&) noexcept = default;
GpuEvent& GpuEvent::operator=(GpuEvent&&) noexcept = default;
void GpuEvent::record(const Stream&) {}
void GpuEvent::make_wait(const Stream&) const {}
bool GpuEvent::passed() const {
  return event_ == nullptr;  // without CUDA there are no events, so this is always true
}
void GpuEvent::finish() const {}
double GpuEvent::ms_since(const GpuEvent&) const {
  return 0;
}

GpuGraph::~GpuGraph() = default;
void GpuGraph::begin(const Stream& stream) {
  require_gpu(stream.device);
}
void GpuGraph::end(const Stream& stream) {
  require_gpu(stream.device);
}
void GpuGraph::abandon(const Stream&) noexcept {}
void GpuGraph::replay(const Stream& stream) {
  require_gpu(stream.device);
}

MemoryPool& host_pool(const Stream& stream) {
  throw UsageError(fmt::format("{} cannot be used: {}", name_of(stream.device), kWhy));
}

std::unique_ptr<SegmentSource> gpu_memory(Device device) {
  require_gpu(device);
  return nullptr;
}
std::unique_ptr<SegmentSource> pinned_memory(Device device) {
  require_gpu(device);
  return nullptr;
}

}  // namespace esp::device
