// HostLink: the link between host and device memory (PCIe or NVLink). "Down" is device to host, "up" is host to device.
// All offload copies use this class, which counts their bytes and measures their time. On a CPU both ends are main
// memory, and a copy is a memcpy with the stream's threads.
//
// The rank owns it. Any thread may copy, each with its own stream. Calls block. On a GPU, a stream without a queue
// selects a CUDA stream that the link has for each direction. This CUDA stream runs concurrently with compute and with
// the other direction; `after` is the compute event that the copy waits for.
//
// Kernels that read host memory directly also use the link. Their caller reports the bytes with read_in_place(); their
// time counts as kernel time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "esp/device/gpu.h"

namespace esp::device {

// Total bytes and seconds of the copies in one direction. If two copies overlap, both durations are added in full.
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
  // bytes that kernels read directly from host memory; bytes_up() includes them
  uint64_t bytes_in_place() const { return in_place_.load(std::memory_order_relaxed); }
  // use_down() and use_up() count copies only, not the bytes that kernels read in place
  LinkUse use_down() const { return down_.use(); }
  LinkUse use_up() const { return up_.use(); }

 private:
  struct LinkDirection {
    std::unique_ptr<GpuQueue> queue;
    std::atomic<uint64_t> bytes{0}, ns{0};
    LinkUse use() const {
      return {bytes.load(std::memory_order_relaxed), static_cast<double>(ns.load(std::memory_order_relaxed)) * 1e-9};
    }
  };
  void copy(LinkDirection& direction, void* to, const void* from, size_t bytes, const Stream& stream,
            const GpuEvent* after);
  Stream copy_stream(LinkDirection& direction, const Stream& stream);

  std::mutex mutex_;  // guards the creation of the queues
  LinkDirection down_, up_;
  std::atomic<uint64_t> in_place_{0};
};

// Measures the bandwidth of a copy of `bytes` in each direction and returns the best of several copies. Allocates from
// the two sources and frees the memory. Both rates are 0 if an allocation fails.
struct LinkRates {
  double down_gb_per_s = 0, up_gb_per_s = 0;
};
LinkRates measure_link(const Stream& stream, SegmentSource& device, SegmentSource& host, size_t bytes);

}  // namespace esp::device
