// A dense row-major array of one element type: a shape over shared memory. Always contiguous; views are reshapes and
// row ranges.
//
// A Tensor is a reference-counted handle: copies of the handle share the memory, and the last handle returns it to its
// pool. `borrow` makes a tensor over memory that the caller owns and keeps alive. Handles may be copied and destroyed
// on any thread. The caller synchronises access to the elements.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "esp/base/check.h"
#include "esp/base/dtype.h"
#include "esp/device/pool.h"
#include "esp/device/stream.h"
#include "esp/tensor/shape.h"

namespace esp::tensor {

// Stream and memory pool for creating and filling tensors. Every function that computes takes one.
struct Context {
  device::Stream stream;
  device::MemoryPool* pool = nullptr;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(device::MemoryPool& pool, const Shape& shape, DType dtype, device::MemoryCategory category);
  static Tensor borrow(void* data, const Shape& shape, DType dtype);

  Tensor(const Tensor& other) noexcept : Tensor(other.block_, other.data_, other.shape_, other.dtype_) { retain(); }
  Tensor(Tensor&& other) noexcept
      : Tensor(std::exchange(other.block_, nullptr), std::exchange(other.data_, nullptr), other.shape_, other.dtype_) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(block_, other.block_);
    std::swap(data_, other.data_);
    std::swap(shape_, other.shape_);
    std::swap(dtype_, other.dtype_);
    return *this;
  }
  ~Tensor() { release(); }

  bool defined() const { return data_ != nullptr; }
  bool unique() const { return block_ && block_->refs.load(std::memory_order_acquire) == 1; }
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> span() const {
    return {static_cast<T*>(data_), static_cast<size_t>(count())};
  }
  const Shape& shape() const { return shape_; }
  int64_t dim(int i) const { return shape_.dim(i); }
  int64_t count() const { return shape_.count(); }
  int64_t rows() const { return shape_.rows(); }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return static_cast<size_t>(count()) * size_of(dtype_); }

  Tensor reshape(const Shape& shape) const;        // the new shape must have the same element count
  Tensor slice(int64_t begin, int64_t end) const;  // range of the first dimension

 private:
  Tensor(device::MemoryPool::PoolBlock* block, void* data, const Shape& shape, DType dtype)
      : block_(block), data_(data), shape_(shape), dtype_(dtype) {}
  void retain() const {
    if (block_) block_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (block_ && block_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) block_->pool->give(block_);
  }

  device::MemoryPool::PoolBlock* block_ = nullptr;  // null for borrowed memory
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
};

// Function that reads the elements [first, first + to.count()) of an offloaded tensor into the host tensor `to`. An
// offloaded tensor has only shape and type, no memory.
using OffloadReader = std::function<void(int64_t first, const Tensor& to)>;

// Returns the type in which kernels accumulate sums over elements of type `storage`: f64 for f64, else f32.
DType accumulation_type(DType storage);

Tensor empty(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);
Tensor zeros(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);
Tensor copy_of(const Context& context, const Tensor& x, device::MemoryCategory category);
Tensor cast_to(const Context& context, const Tensor& x, DType dtype, device::MemoryCategory category);
// Returns x itself if the context's kernels can read it. If x is on the host and the kernels run on a GPU, returns a
// copy on the GPU.
Tensor to_device(const Context& context, const Tensor& x, device::MemoryCategory category);
double item(const Tensor& x, int64_t at = 0);  // converts one element to double; for tests and losses

}  // namespace esp::tensor
