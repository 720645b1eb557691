// Where a rank computes: this machine's processor, or one of its GPUs with a queue of its own. Owns the queue and what
// pools are filled from; outlives both.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "esp/device/gpu.h"

namespace esp::train {

class Place {
 public:
  // `device` as in run.device; of several GPUs the one whose turn `number` is. DeviceError: why there is none.
  // `deterministic`: the same bits each time, for some time and memory more.
  Place(const std::string& device, device::MemoryAccount& account, int number = 0, bool deterministic = false);

  device::Stream stream(device::ThreadPool* threads) const;
  device::SegmentSource& memory() { return memory_ ? *memory_ : device::host_memory(); }
  device::SegmentSource& host_memory() { return host_memory_ ? *host_memory_ : device::host_memory(); }

 private:
  std::optional<device::GpuQueue> queue_;                        // none: the processor
  std::unique_ptr<device::SegmentSource> memory_, host_memory_;  // null likewise
};

}  // namespace esp::train
