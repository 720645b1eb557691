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
  int major = 0, minor = 0;  // CUDA compute capability major.minor
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
};

// The GPUs of this machine, listed without using them; never throws.
struct GpuSurvey {
  std::vector<GpuInfo> gpus;
  std::string problem;          // if no GPU is usable: the reason and a fix
  int driver = 0, runtime = 0;  // CUDA versions of the driver and the runtime; 13000 means 13.0
};
GpuSurvey survey_gpus();
Device require_gpu(Device device);  // throws a UsageError with the reason if the GPU cannot be used

// A CUDA stream together with scratch memory and library handles for its kernels (cuda/queue.h).
class GpuQueue {
 public:
  // CUDA stream priority. Copies and collectives that overlap the step use `normal`, which yields to `high`.
  enum class Priority { normal, high };
  explicit GpuQueue(Device device, MemoryAccount* account = nullptr, Priority priority = Priority::normal);
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  // Returns a Stream of this queue. `pool`: threads for work on the host.
  Stream stream(ThreadPool* pool = nullptr) const;

 private:
  Device device_;
  std::unique_ptr<struct CudaQueue> queue_;
};

// memcpy on the host, divided over the stream's threads.
void copy_on_host(void* to, const void* from, size_t bytes, const Stream& stream);
// Copies between host and device in any direction, in stream order. If the host memory is pageable (not pinned), the
// host waits for the copy. On a CPU this is memcpy.
void copy(void* to, const void* from, size_t bytes, const Stream& stream);
void finish(const Stream& stream);  // waits for all work queued on the stream; throws DeviceError if any of it failed
// Copies between any two buffers, on the host or on a GPU, and waits for the copy. The copy runs after all work queued
// on that GPU. Without a GPU this is memcpy. For rare copies (checkpoints, a loss value).
void transfer(void* to, const void* from, size_t bytes);
bool is_host_accessible(const void* data);  // whether host code may read the memory
// Returns a CPU stream with the host threads of `stream`.
inline Stream host_side(const Stream& stream) {
  return {{}, stream.pool, nullptr};
}
uint64_t free_bytes(Device device);  // free bytes of the GPU's memory, as its driver reports them
// True during the capture of a CUDA graph on this stream. During a capture, code must not wait or allocate.
bool capturing(const Stream& stream);

// A CUDA event. On a CPU, passed() is always true.
class GpuEvent {
 public:
  explicit GpuEvent(Device device, bool timed = false);
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&& other) noexcept;

  void record(const Stream& stream);
  void make_wait(const Stream& stream) const;  // later work of `stream` waits for the event
  bool passed() const;
  void finish() const;                             // blocks the host until the event has passed
  double ms_since(const GpuEvent& earlier) const;  // time between the two events; both must be timed and have passed

 private:
  void* event_ = nullptr;
};

// A CUDA graph: work that is captured once and then replayed with one launch instead of hundreds. A replay uses the
// addresses and scalar arguments of the capture.
class GpuGraph {
 public:
  GpuGraph() = default;
  ~GpuGraph();
  GpuGraph(const GpuGraph&) = delete;
  GpuGraph& operator=(const GpuGraph&) = delete;

  void begin(const Stream& stream);
  void end(const Stream& stream);
  void abandon(const Stream& stream) noexcept;  // ends the capture without a graph
  void replay(const Stream& stream);
  bool recorded() const { return exec_ != nullptr; }

 private:
  void* exec_ = nullptr;
};

// Segment sources for a MemoryPool: one for GPU memory, one for pinned host memory.
std::unique_ptr<SegmentSource> gpu_memory(Device device);
std::unique_ptr<SegmentSource> pinned_memory(Device device);

}  // namespace esp::device
