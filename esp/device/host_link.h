// The host-device link: every copy across it goes through here and is counted and timed. On a CPU both ends are main
// memory and a copy is memcpy on the stream's threads.
//
// Owned by the rank; any thread may copy, each with its own stream. Blocking. On a GPU a stream without a queue means
// the link's own CUDA stream for that direction, concurrent with compute and with the other direction; `after` is the
// compute event to wait for.
//
// Kernels that read host memory in place cross the link too; their caller reports the bytes. Their time belongs to the
// kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "esp/device/gpu.h"

namespace esp::device {

// Bytes and seconds of one direction; concurrent copies are each counted in full.
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
  struct LinkDirection {
    std::unique_ptr<GpuQueue> queue;
    std::atomic<uint64_t> bytes{0}, ns{0};
    LinkUse use() const {
      return {bytes.load(std::memory_order_relaxed), static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9};
    }
  };
  void copy(LinkDirection& way, void* to, const void* from, size_t bytes, const Stream& stream, const GpuEvent* after);
  Stream beside(LinkDirection& way, const Stream& stream);

  std::mutex mutex_;  // guards making the queues
  LinkDirection down_, up_;
  std::atomic<uint64_t> in_place_{0};
};

// Bandwidth of an isolated copy of `bytes` each way, best of a few. Memory is taken from the sources and returned.
// Zeros without a GPU.
struct LinkRates {
  double down_gb_per_s = 0, up_gb_per_s = 0;
};
LinkRates measure_link(const Stream& stream, SegmentSource& device, SegmentSource& host, size_t bytes);

}  // namespace esp::device
