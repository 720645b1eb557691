#include "esp/device/host_link.h"

#include <algorithm>
#include <cstring>

#include "esp/base/clock.h"
#include "esp/device/is_cuda.h"

namespace esp::device {

Stream HostLink::copy_stream(LinkDirection& direction, const Stream& stream) {
  if (!is_cuda(stream) || stream.queue) return stream;
  std::lock_guard lock(mutex_);
  if (!direction.queue) direction.queue = std::make_unique<GpuQueue>(stream.device, nullptr, GpuQueue::Priority::high);
  return direction.queue->stream(stream.pool);
}

// On a GPU, events before and after the copy measure its time, so the wait for earlier work is not included.
void HostLink::copy(LinkDirection& direction, void* to, const void* from, size_t bytes, const Stream& stream,
                    const GpuEvent* after) {
  const Stream own = copy_stream(direction, stream);
  if (after) after->make_wait(own);
  int64_t ns = 0;
  if (is_cuda(own)) {
    GpuEvent begun(own.device, true), ended(own.device, true);
    begun.record(own);
    device::copy(to, from, bytes, own);
    ended.record(own);
    finish(own);
    ns = static_cast<int64_t>(ended.ms_since(begun) * 1e6);
  } else {
    const int64_t begun = now_ns();
    device::copy(to, from, bytes, own);
    ns = now_ns() - begun;
  }
  direction.bytes.fetch_add(bytes, std::memory_order_relaxed);
  direction.ns.fetch_add(static_cast<uint64_t>(std::max<int64_t>(ns, 0)), std::memory_order_relaxed);
}

LinkRates measure_link(const Stream& stream, SegmentSource& device, SegmentSource& host, size_t bytes) {
  constexpr int kRounds = 4;  // the first round is a warm-up
  LinkRates best;
  std::byte* const there = device.take(bytes);
  std::byte* const here = there ? host.take(bytes) : nullptr;
  if (here) {
    std::memset(here, 0, bytes);
    const Stream beside{stream.device, stream.pool, nullptr};
    for (int round = 0; round < kRounds; ++round) {
      HostLink link;
      link.up(there, here, bytes, beside);
      link.down(here, there, bytes, beside);
      best.up_gb_per_s = std::max(best.up_gb_per_s, link.use_up().gb_per_s());
      best.down_gb_per_s = std::max(best.down_gb_per_s, link.use_down().gb_per_s());
    }
    host.give(here, bytes);
  }
  if (there) device.give(there, bytes);
  return best;
}

}  // namespace esp::device
