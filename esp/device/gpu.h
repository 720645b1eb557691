// GPUs as the rest of the house sees them: which there are, queues of work, events, copies, and memory to fill a Pool
// from. No CUDA type appears here; the bodies are in cuda/, and in no_cuda.cpp where that was not compiled.
//
// A GpuQueue belongs to a rank and outlives the streams taken from it. Work on one queue runs in order. Errors of work
// that was queued show at the next call that waits.
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

// What can be said without using any of them; never throws.
struct GpuSurvey {
  std::vector<GpuInfo> gpus;
  std::string problem;          // why there are none, and what would help
  int driver = 0, runtime = 0;  // 13000 is 13.0
};
GpuSurvey survey_gpus();
Device require_gpu(Device device);  // UsageError says why it cannot be used

// A queue of work on a GPU, with the scratch memory and the library handles its kernels use (cuda/queue.h).
class GpuQueue {
 public:
  // Low ones give way to others: copies and collectives beside the step.
  enum class Priority { normal, high };
  explicit GpuQueue(Device device, MemoryAccount* account = nullptr, Priority priority = Priority::normal);
  ~GpuQueue();
  GpuQueue(const GpuQueue&) = delete;
  GpuQueue& operator=(const GpuQueue&) = delete;

  // `pool`: the host's threads, for what is done there on the way.
  Stream stream(ThreadPool* pool = nullptr) const;

 private:
  Device device_;
  std::unique_ptr<struct Queue> queue_;
};

// memcpy on the stream's threads.
void copy_on_host(void* to, const void* from, size_t bytes, const Stream& stream);
// Any direction between host and device, in the stream's order; on a CPU memcpy. From and to memory that is not pinned
// the host waits.
void copy(void* to, const void* from, size_t bytes, const Stream& stream);
void finish(const Stream& stream);  // returns when all that was queued has been done; DeviceError if it failed
// Any memory to any memory, after all that was queued on its GPU, returning when copied: for what happens seldom
// (checkpoints, a loss). On a CPU memcpy.
void transfer(void* to, const void* from, size_t bytes);
bool on_host(const void* data);  // whether the host may read it
// The host's part of a stream: its threads.
inline Stream host_side(const Stream& stream) {
  return {{}, stream.pool, nullptr};
}
uint64_t free_bytes(Device device);    // of the GPU, as its driver counts
bool capturing(const Stream& stream);  // a graph is being recorded: nothing may wait or allocate

// A point in a stream's work. On a CPU it has always passed.
class GpuEvent {
 public:
  explicit GpuEvent(Device device, bool timed = false);
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&& other) noexcept;

  void record(const Stream& stream);
  void hold_back(const Stream& stream) const;  // later work of `stream` waits for it
  bool passed() const;
  void finish() const;                             // the host waits
  double ms_since(const GpuEvent& earlier) const;  // both timed and passed

 private:
  void* event_ = nullptr;
};

// The work of a piece of code, recorded once and replayed whole: one launch instead of hundreds. Addresses and scalar
// arguments are those of the recording.
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

// Where a Pool's segments come from: the GPU's memory, or host memory it can copy to and from without a detour.
std::unique_ptr<SegmentSource> gpu_memory(Device device);
std::unique_ptr<SegmentSource> pinned_memory(Device device);

}  // namespace esp::device
