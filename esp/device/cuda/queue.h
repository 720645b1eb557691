// CudaQueue: a CUDA stream with scratch memory (workspace). On a GPU, Stream::queue points to it. Only CUDA code uses
// it.
//
// scratch() returns memory for the kernel that is launched next. Its previous contents are lost, and the kernel after
// that may overwrite it. The scratch memory grows during the first step and then keeps its size; before it grows, the
// host waits for all work of the queue. Only one thread may use a queue at a time.
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
  MemoryAccount* account = nullptr;  // counts the scratch memory; may be null

  ~CudaQueue();
  void* scratch(size_t bytes);
  // Returns the queue's object of type T (a library handle or a cache of tuned GEMM algorithms). The first call creates
  // it.
  template <typename T>
  T& get_or_create() {
    std::shared_ptr<void>& one = instances_[std::type_index(typeid(T))];
    if (!one) one = std::make_shared<T>();
    return *static_cast<T*>(one.get());
  }

 private:
  void* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  std::map<std::type_index, std::shared_ptr<void>> instances_;
};

inline CudaQueue& queue_of(const Stream& stream) {
  return *static_cast<CudaQueue*>(stream.queue);
}
inline cudaStream_t handle_of(const Stream& stream) {
  return queue_of(stream).handle;
}

}  // namespace esp::device
