#include "esp/kernel/cross_entropy.h"

#include <cmath>
#include <limits>

#include "esp/kernel/floating.h"

namespace esp::kernel::ref {
namespace {

// log Σ exp of a row. The result is NaN if the row contains a NaN, or if its largest element is an infinity.
template <typename T>
double log_sum_exp(const T* row, int64_t count) {
  using A = Accumulator<T>;
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t c = 0; c < count; ++c)
    if (static_cast<A>(row[c]) > top) top = static_cast<A>(row[c]);
  for (int64_t c = 0; c < count; ++c) sum += std::exp(static_cast<A>(row[c]) - top);
  return top + std::log(sum);
}

}  // namespace

void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      ESP_CHECK(targets[r] < num_classes, "cross entropy: got target {}; must be < {} (the number of classes)",
                targets[r], num_classes);
      const T* row = static_cast<const T*>(logits) + r * row_stride;
      const double all = log_sum_exp(row, num_classes);
      if (lse) static_cast<A*>(lse)[r] = static_cast<A>(all);
      static_cast<A*>(losses)[r] = targets[r] < 0 ? A{0} : static_cast<A>(all - static_cast<A>(row[targets[r]]));
    }
  });
}

void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      ESP_CHECK(targets[r] < num_classes, "cross entropy: got target {}; must be < {} (the number of classes)",
                targets[r], num_classes);
      T* row = static_cast<T*>(logits) + r * row_stride;
      for (int64_t c = 0; c < num_classes; ++c) {
        const double probability = std::exp(double{static_cast<A>(row[c])} - static_cast<const A*>(lse)[r]);
        const double gradient = (probability - (c == targets[r] ? 1 : 0)) * scale;
        row[c] = static_cast<T>(targets[r] < 0 ? A{0} : static_cast<A>(gradient));
      }
    }
  });
}

void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype) {
  with_floating(dtype, [&]<typename T>(std::type_identity<T>) {
    using A = Accumulator<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(x) + r * cols;
      const double all = log_sum_exp(row, cols);
      for (int64_t c = 0; c < cols; ++c)
        static_cast<T*>(y)[r * cols + c] = static_cast<T>(static_cast<A>(std::exp(static_cast<A>(row[c]) - all)));
    }
  });
}

}  // namespace esp::kernel::ref
