// Where a rank computes: this machine's processor, or one of its GPUs with a queue of its own. Owns the queue and what
// pools are filled from; outlives both.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "esp/device/gpu.h"

namespace esp::train {

struct GpuHabits {
  bool deterministic = false;  // the same bits each time, for some time and memory more
  bool tf32 = false;           // products of f32 with ten bits of mantissa
  bool fp8 = false;            // linear maps of bf16 in 8 bits
  std::string choices;         // a file of the algorithms of products: read, and written at the end; empty: none
};

class Place {
 public:
  // `device` as in run.device; of several GPUs the one whose turn `number` is. DeviceError: why there is none.
  Place(const std::string& device, device::MemoryAccount& account, int number = 0, const GpuHabits& habits = {});
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  device::Stream stream(device::ThreadPool* threads) const;
  device::SegmentSource& memory() { return memory_ ? *memory_ : device::host_memory(); }
  device::SegmentSource& host_memory() { return host_memory_ ? *host_memory_ : device::host_memory(); }

 private:
  const std::string choices_;
  std::optional<device::GpuQueue> queue_;                        // none: the processor
  std::unique_ptr<device::SegmentSource> memory_, host_memory_;  // null likewise
};

}  // namespace esp::train
