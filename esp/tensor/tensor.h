// A dense row-major array of one element type: a shape over shared memory. Always contiguous; views are reshapes and
// row ranges.
//
// A value handle: copies share the memory; the last handle returns it to its pool. `borrow` refers to memory whose
// owner outlives the tensor. Handles may be copied and destroyed on any thread; synchronising access to contents is up
// to the user.
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

// What creating and filling tensors needs; passed to everything that computes.
struct Context {
  device::Stream stream;
  device::MemoryPool* pool = nullptr;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(device::MemoryPool& pool, const Shape& shape, DType dtype, device::MemoryCategory category);
  static Tensor borrow(void* data, const Shape& shape, DType dtype);

  Tensor(const Tensor& other) noexcept : Tensor(other.piece_, other.data_, other.shape_, other.dtype_) { hold(); }
  Tensor(Tensor&& other) noexcept
      : Tensor(std::exchange(other.piece_, nullptr), std::exchange(other.data_, nullptr), other.shape_, other.dtype_) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(piece_, other.piece_);
    std::swap(data_, other.data_);
    std::swap(shape_, other.shape_);
    std::swap(dtype_, other.dtype_);
    return *this;
  }
  ~Tensor() { drop(); }

  bool defined() const { return data_ != nullptr; }
  bool unique() const { return piece_ && piece_->refs.load(std::memory_order_acquire) == 1; }
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

  Tensor reshape(const Shape& shape) const;        // same count
  Tensor slice(int64_t begin, int64_t end) const;  // of the first dimension

 private:
  Tensor(device::MemoryPool::PoolBlock* piece, void* data, const Shape& shape, DType dtype)
      : piece_(piece), data_(data), shape_(shape), dtype_(dtype) {}
  void hold() const {
    if (piece_) piece_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  void drop() noexcept {
    if (piece_ && piece_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) piece_->pool->give(piece_);
  }

  device::MemoryPool::PoolBlock* piece_ = nullptr;  // null when borrowed
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
};

// Reads elements [first, first + to.count()) of offloaded values (a Tensor with shape and type only) into host tensor
// `to`.
using ReadRun = std::function<void(int64_t first, const Tensor& to)>;

// The type of sums and statistics of `storage`: f64 for f64, else f32.
DType accumulation_type(DType storage);

Tensor empty(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);
Tensor zeros(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);
Tensor copy_of(const Context& context, const Tensor& x, device::MemoryCategory category);
Tensor cast_to(const Context& context, const Tensor& x, DType dtype, device::MemoryCategory category);
// x where the context's kernels can read it: x itself, or a copy if it is on the host and the kernels run on a GPU.
Tensor to_device(const Context& context, const Tensor& x, device::MemoryCategory category);
double item(const Tensor& x, int64_t at = 0);  // one element as a double; for tests and losses

}  // namespace esp::tensor
