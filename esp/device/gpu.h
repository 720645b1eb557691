// GPU abstraction without CUDA types: device list, queues, events, graphs, copies, and memory for a MemoryPool.
// Implemented in cuda/, or in no_cuda.cpp in builds without CUDA.
//
// A GpuQueue belongs to a rank and outlives the streams created from it. Work on one queue runs in order. Errors of
// queued work surface at the next call that waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "esp/device/memory.h"
#include "esp/device/pool.h"
#include "esp/device/stream.h"

namespace esp::device {

struct GpuInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
};

// Survey of the GPUs without using them; never throws.
struct GpuSurvey {
  std::vector<GpuInfo> gpus;
  std::string problem;          // why no GPU is usable, and the fix
  int driver = 0, runtime = 0;  // 13000 is 13.0
};
GpuSurvey survey_gpus();
Device require_gpu(Device device);  // UsageError with the reason it cannot be used

// A CUDA stream with the scratch memory and library handles its kernels use (cuda/queue.h).
class GpuQueue {
 public:
  // normal yields to high; copies and collectives beside the step use normal.
  enum class Priority { normal, high };
  explicit GpuQueue(Device device, MemoryAccount* account = nullptr, Priority priority = Priority::normal);
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  // `pool`: host threads for host-side work.
  Stream stream(ThreadPool* pool = nullptr) const;

 private:
  Device device_;
  std::unique_ptr<struct CudaQueue> queue_;
};

// memcpy on the stream's threads.
void copy_on_host(void* to, const void* from, size_t bytes, const Stream& stream);
// Copies between host and device in any direction, in stream order; memcpy on a CPU. With unpinned memory the host
// waits.
void copy(void* to, const void* from, size_t bytes, const Stream& stream);
void finish(const Stream& stream);  // waits for all queued work; DeviceError if it failed
// Copies any memory to any memory, after all work queued on its GPU; blocking. For rare copies (checkpoints, a loss).
// memcpy on a CPU.
void transfer(void* to, const void* from, size_t bytes);
bool on_host(const void* data);  // whether the host may read it
// The host side of a stream: its threads.
inline Stream host_side(const Stream& stream) {
  return {{}, stream.pool, nullptr};
}
uint64_t free_bytes(Device device);    // of the GPU, as its driver counts
bool capturing(const Stream& stream);  // a CUDA graph is being captured: no waits, no allocations

// A CUDA event. On a CPU it has always passed.
class GpuEvent {
 public:
  explicit GpuEvent(Device device, bool timed = false);
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&& other) noexcept;

  void record(const Stream& stream);
  void make_wait(const Stream& stream) const;  // later work of `stream` waits for it
  bool passed() const;
  void finish() const;                             // the host waits
  double ms_since(const GpuEvent& earlier) const;  // both timed and passed

 private:
  void* event_ = nullptr;
};

// A CUDA graph: work captured once and replayed with one launch instead of hundreds. Addresses and scalar arguments are
// those of the capture.
class GpuGraph {
 public:
  GpuGraph() = default;
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  void begin(const Stream& stream);
  void end(const Stream& stream);
  void abandon(const Stream& stream) noexcept;  // instead of end
  void replay(const Stream& stream);
  bool recorded() const { return exec_ != nullptr; }

 private:
  void* exec_ = nullptr;
};

// Segment sources for a MemoryPool: GPU memory, or pinned host memory.
std::unique_ptr<SegmentSource> gpu_memory(Device device);
std::unique_ptr<SegmentSource> pinned_memory(Device device);

}  // namespace esp::device
