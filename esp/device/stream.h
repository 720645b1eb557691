// Execution context of kernels, the last argument of every kernel. On a CPU it provides the rank's compute threads and
// calls are synchronous; on a GPU it is a CUDA stream and calls are asynchronous.
//
// A value; the pool or the queue is owned by the rank and outlives it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "esp/device/device.h"
#include "esp/device/thread_pool.h"

namespace esp::device {

struct Stream {
  Device device;
  ThreadPool* pool = nullptr;  // on a CPU: the compute threads; null: only the calling thread
  void* queue = nullptr;       // on a GPU: the CudaQueue (cuda/queue.h)
  int num_threads() const { return pool ? pool->num_threads() : 1; }
};

// Calls f(begin, end) over [0, count): one contiguous range per worker; range boundaries are multiples of `grain`. If
// count is small, the caller runs all of it. The ranges depend only on count, grain and the number of threads.
template <typename F>
void parallel_for(const Stream& stream, int64_t count, int64_t grain, F&& f) {
  int64_t num_grains = (count + grain - 1) / grain;
  int num_pieces = static_cast<int>(std::min<int64_t>(stream.num_threads(), num_grains));
  if (num_pieces <= 1) {
    if (count > 0) f(int64_t{0}, count);
    return;
  }
  stream.pool->run([&](int worker) {
    if (worker >= num_pieces) return;
    int64_t begin = num_grains * worker / num_pieces * grain;
    int64_t end = std::min(count, num_grains * (worker + 1) / num_pieces * grain);
    if (begin < end) f(begin, end);
  });
}

}  // namespace esp::device
