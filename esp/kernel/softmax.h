// Softmax over stored scores, its gradient, and dropout by a byte mask. For unfused attention; attention.h is the fused
// form.
//
// Rows are `cols` long and numbered from 0 again every `period` rows (0: never); row i sees columns below `length` and,
// if causal, j ≤ i. Other columns count as −∞. Exponentials and sums are in the accumulation type.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct SoftmaxShape {
  int64_t rows = 0, cols = 0, period = 0, length = 0;
  bool causal = false;

  int64_t num_visible(int64_t row) const {
    const int64_t i = period ? row % period : row;
    const int64_t seen = causal && i + 1 < length ? i + 1 : length;
    return seen < cols ? seen : cols;
  }
};

// In place: scores become probabilities, zero if masked.
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);
// In place: d, the gradient of the probabilities p, becomes p∘(d − Σ_row p∘d).
void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);

// mask = 1 where x is not zero, else 0.
void mask_of(uint8_t* mask, const void* x, int64_t count, DType dtype, const device::Stream& stream);
// y = mask ? x·scale : 0. y may equal x.
void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype,
                const device::Stream& stream);

namespace ref {
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype);
void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype);
void mask_of(uint8_t* mask, const void* x, int64_t count, DType dtype);
void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype);
}  // namespace ref

namespace cuda {
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);
decltype(kernel::softmax_backward) softmax_backward;
decltype(kernel::mask_of) mask_of;
decltype(kernel::apply_mask) apply_mask;
}  // namespace cuda

}  // namespace esp::kernel
