#include "esp/kernel/cross_entropy.h"

#include "esp/kernel/floating.h"

namespace esp::kernel {

void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  const DType stat = accumulator_of(dtype);
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    ref::cross_entropy_forward(at(losses, begin, stat), at(lse, begin, stat), at(logits, begin * row_stride, dtype),
                               targets + begin, end - begin, num_classes, row_stride, dtype);
  });
}

void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  const DType stat = accumulator_of(dtype);
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    ref::cross_entropy_backward(at(logits, begin * row_stride, dtype), at(lse, begin, stat), targets + begin, scale,
                                end - begin, num_classes, row_stride, dtype);
  });
}

void cross_entropy_fused(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                         int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream) {
  const DType stat = accumulator_of(dtype);
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      double lse = 0;  // room for either type
      ref::cross_entropy_forward(at(losses, r, stat), &lse, at(logits, r * row_stride, dtype), targets + r, 1,
                                 num_classes, row_stride, dtype);
      ref::cross_entropy_backward(at(logits, r * row_stride, dtype), &lse, targets + r, scale, 1, num_classes,
                                  row_stride, dtype);
    }
  });
}

void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream) {
  device::parallel_for(stream, rows, 1, [&](int64_t begin, int64_t end) {
    ref::softmax_forward(at(y, begin * cols, dtype), at(x, begin * cols, dtype), end - begin, cols, dtype);
  });
}

}  // namespace esp::kernel
