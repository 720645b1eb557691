#include "esp/tensor/tensor.h"

#include <cstring>

#include "esp/base/half.h"
#include "esp/device/gpu.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/elements.h"
#include "esp/kernel/elementwise.h"

namespace esp::tensor {

Tensor::Tensor(device::MemoryPool& pool, const Shape& shape, DType dtype, device::MemoryCategory category)
    : shape_(shape), dtype_(dtype) {
  block_ = pool.take(static_cast<size_t>(shape.count()) * size_of(dtype), category);
  data_ = block_->data;
}

Tensor Tensor::borrow(void* data, const Shape& shape, DType dtype) {
  return {nullptr, data, shape, dtype};
}

Tensor Tensor::reshape(const Shape& shape) const {
  ESP_CHECK(shape.count() == count(), "cannot reshape {} to {}: the element counts differ", shape_.text(),
            shape.text());
  retain();
  return {block_, data_, shape, dtype_};
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
  ESP_CHECK(shape_.rank() > 0 && 0 <= begin && begin <= end && end <= dim(0),
            "slice [{}, {}) is out of range for shape {}", begin, end, shape_.text());
  const int64_t row = dim(0) == 0 ? 0 : count() / dim(0);
  retain();
  std::byte* const data = defined()
                              ? static_cast<std::byte*>(data_) + static_cast<size_t>(begin * row) * size_of(dtype_)
                              : nullptr;  // a tensor without memory has only shape and type
  return {block_, data, shape_.with_first(end - begin), dtype_};
}

DType accumulation_type(DType storage) {
  return storage == DType::f64 ? DType::f64 : DType::f32;
}

Tensor empty(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category) {
  return Tensor(*context.pool, shape, dtype, category);
}

Tensor zeros(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category) {
  Tensor y = empty(context, shape, dtype, category);
  kernel::fill(y.data(), 0, y.count(), dtype, context.stream);
  return y;
}

Tensor copy_of(const Context& context, const Tensor& x, device::MemoryCategory category) {
  return cast_to(context, x, x.dtype(), category);
}

Tensor cast_to(const Context& context, const Tensor& x, DType dtype, device::MemoryCategory category) {
  Tensor y = empty(context, x.shape(), dtype, category);
  kernel::cast(y.data(), dtype, x.data(), x.dtype(), x.count(), context.stream);
  return y;
}

Tensor to_device(const Context& context, const Tensor& x, device::MemoryCategory category) {
  if (!device::is_cuda(context.stream) || !x.defined() || !device::is_host_accessible(x.data())) return x;
  Tensor y = empty(context, x.shape(), x.dtype(), category);
  device::copy(y.data(), x.data(), x.bytes(), context.stream);
  return y;
}

double item(const Tensor& x, int64_t at) {
  ESP_CHECK(0 <= at && at < x.count(), "element {} is out of range for shape {}", at, x.shape().text());
  double value = 0;
  kernel::with_element(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    T element;
    device::transfer(&element, x.as<const T>() + at, sizeof(T));
    if constexpr (kernel::is_half<T>) {
      value = static_cast<float>(element);
    } else {
      value = static_cast<double>(element);
    }
  });
  return value;
}

}  // namespace esp::tensor
