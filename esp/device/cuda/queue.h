// The target of Stream::queue on a GPU: a CUDA stream with scratch memory. For CUDA bodies only.
//
// scratch() is memory for the kernel being launched: its previous contents are lost, and the next kernel of the queue
// may overwrite it after this one has run. It grows during the first step, then stays; growing waits for the queue. One
// thread uses a queue at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <typeindex>

#include "esp/device/memory.h"
#include "esp/device/stream.h"

namespace esp::device {

struct CudaQueue {
  Device device;
  cudaStream_t handle = nullptr;
  int multiprocessors = 0;
  MemoryAccount* account = nullptr;  // charged for scratch, if set

  ~CudaQueue();
  void* scratch(size_t bytes);
  // The queue's instance of T, created on first use: library handles, tuned choices.
  template <typename T>
  T& own() {
    std::shared_ptr<void>& one = own_[std::type_index(typeid(T))];
    if (!one) one = std::make_shared<T>();
    return *static_cast<T*>(one.get());
  }

 private:
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::map<std::type_index, std::shared_ptr<void>> own_;
};

inline CudaQueue& queue_of(const Stream& stream) {
  return *static_cast<CudaQueue*>(stream.queue);
}
inline cudaStream_t handle_of(const Stream& stream) {
  return queue_of(stream).handle;
}

}  // namespace esp::device
