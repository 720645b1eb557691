// The way between a device's memory and the host's: every copy that crosses goes through here and is counted, exactly.
// On a CPU both ends are the machine's own memory and a copy is memcpy on the stream's threads.
//
// Owned by the rank; any thread may copy, each with a stream that is its own at that moment. Returns when copied. On a
// GPU a stream without a queue means the link's own, beside the compute stream's work; `after` then says what of that
// must have passed before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "esp/device/gpu.h"

namespace esp::device {

class HostLink {
 public:
  void down(void* host, const void* device, size_t bytes, const Stream& stream, const GpuEvent* after = nullptr) {
    copy(host, device, bytes, stream, after);
    bytes_down_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void up(void* device, const void* host, size_t bytes, const Stream& stream, const GpuEvent* after = nullptr) {
    copy(device, host, bytes, stream, after);
    bytes_up_.fetch_add(bytes, std::memory_order_relaxed);
  }

  uint64_t bytes_down() const { return bytes_down_.load(std::memory_order_relaxed); }
  uint64_t bytes_up() const { return bytes_up_.load(std::memory_order_relaxed); }

 private:
  void copy(void* to, const void* from, size_t bytes, const Stream& stream, const GpuEvent* after);
  Stream beside(const Stream& stream);

  std::mutex mutex_;  // guards making the queue
  std::unique_ptr<GpuQueue> queue_;
  std::atomic<uint64_t> bytes_down_{0}, bytes_up_{0};
};

}  // namespace esp::device
