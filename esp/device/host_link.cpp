#include "esp/device/host_link.h"

#include "esp/device/on_cuda.h"

namespace esp::device {

Stream HostLink::beside(const Stream& stream) {
  if (!on_cuda(stream) || stream.queue) return stream;
  std::lock_guard lock(mutex_);
  if (!queue_) queue_ = std::make_unique<GpuQueue>(stream.device, nullptr, GpuQueue::Priority::high);
  return queue_->stream(stream.pool);
}

void HostLink::copy(void* to, const void* from, size_t bytes, const Stream& stream, const GpuEvent* after) {
  const Stream own = beside(stream);
  if (after) after->hold_back(own);
  device::copy(to, from, bytes, own);
  finish(own);
}

}  // namespace esp::device
