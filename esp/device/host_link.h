// The way between a device's memory and the host's: every copy that crosses goes through here and is counted, exactly,
// and timed. On a CPU both ends are the machine's own memory and a copy is memcpy on the stream's threads.
//
// Owned by the rank; any thread may copy, each with a stream that is its own at that moment. Returns when copied. On a
// GPU a stream without a queue means the link's own for that direction, beside the compute stream's work and beside
// copies the other way; `after` then says what of that must have passed before.
//
// What a kernel reads from the host's memory itself crosses too; whoever starts one says how much. It has no time of
// its own: the kernel's is the compute stream's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "esp/device/gpu.h"

namespace esp::device {

// What went one way, and how long copies took; those of several threads at once are each counted whole.
struct LinkUse {
  uint64_t bytes = 0;
  double seconds = 0;
  double gb_per_s() const { return seconds > 0 ? static_cast<double>(bytes) * 1e-9 / seconds : 0; }
  LinkUse operator-(const LinkUse& earlier) const { return {bytes - earlier.bytes, seconds - earlier.seconds}; }
};

class HostLink {
 public:
  void down(void* host, const void* device, size_t bytes, const Stream& stream, const GpuEvent* after = nullptr) {
    copy(down_, host, device, bytes, stream, after);
  }
  void up(void* device, const void* host, size_t bytes, const Stream& stream, const GpuEvent* after = nullptr) {
    copy(up_, device, host, bytes, stream, after);
  }

  void read_in_place(size_t bytes) { in_place_.fetch_add(bytes, std::memory_order_relaxed); }

  uint64_t bytes_down() const { return down_.bytes.load(std::memory_order_relaxed); }
  uint64_t bytes_up() const { return up_.bytes.load(std::memory_order_relaxed) + bytes_in_place(); }
  uint64_t bytes_in_place() const { return in_place_.load(std::memory_order_relaxed); }  // of bytes_up
  LinkUse use_down() const { return down_.use(); }                                       // copies
  LinkUse use_up() const { return up_.use(); }

 private:
  struct Way {
    std::unique_ptr<GpuQueue> queue;
    std::atomic<uint64_t> bytes{0}, ns{0};
    LinkUse use() const {
      return {bytes.load(std::memory_order_relaxed), static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9};
    }
  };
  void copy(Way& way, void* to, const void* from, size_t bytes, const Stream& stream, const GpuEvent* after);
  Stream beside(Way& way, const Stream& stream);

  std::mutex mutex_;  // guards making the queues
  Way down_, up_;
  std::atomic<uint64_t> in_place_{0};
};

// What a copy of `bytes` and nothing else gets each way, the best of a few; memory is taken from the sources and given
// back. Zeros where there is none.
struct LinkRates {
  double down_gb_per_s = 0, up_gb_per_s = 0;
};
LinkRates measure_link(const Stream& stream, SegmentSource& device, SegmentSource& host, size_t bytes);

}  // namespace esp::device
