#include "esp/kernel/softmax.h"

#include <cmath>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {

void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      T* row = static_cast<T*>(scores) + r * shape.cols;
      const int64_t n = shape.num_visible(r);
      A highest = n ? static_cast<A>(row[0]) : A{0}, total = 0;
      for (int64_t j = 0; j < n; ++j) highest = std::max(highest, static_cast<A>(row[j]));
      for (int64_t j = 0; j < n; ++j) total += std::exp(static_cast<A>(row[j]) - highest);
      for (int64_t j = 0; j < shape.cols; ++j)
        row[j] = static_cast<T>(j < n ? std::exp(static_cast<A>(row[j]) - highest) / total : A{0});
    }
  });
}

void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < shape.rows; ++r) {
      T* row = static_cast<T*>(d) + r * shape.cols;
      const T* of = static_cast<const T*>(p) + r * shape.cols;
      A mean = 0;
      for (int64_t j = 0; j < shape.num_visible(r); ++j) mean += static_cast<A>(of[j]) * static_cast<A>(row[j]);
      for (int64_t j = 0; j < shape.cols; ++j)
        row[j] =
            static_cast<T>(j < shape.num_visible(r) ? static_cast<A>(of[j]) * (static_cast<A>(row[j]) - mean) : A{0});
    }
  });
}

void nonzero_mask(uint8_t* mask, const void* x, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    for (int64_t i = 0; i < count; ++i)
      mask[i] = static_cast<Accumulator<T>>(static_cast<const T*>(x)[i]) != Accumulator<T>{0};
  });
}

void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t i = 0; i < count; ++i)
      static_cast<T*>(y)[i] =
          static_cast<T>(mask[i] ? static_cast<A>(static_cast<const T*>(x)[i]) * static_cast<A>(scale) : A{0});
  });
}

}  // namespace esp::kernel::ref
