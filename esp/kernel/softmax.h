// Softmax over stored attention scores, its gradient, and dropout with a byte mask. Used by unfused attention;
// attention.h has the fused form.
//
// Rows have `cols` elements. Row r has the query index i = r mod period (i = r if period is 0). Row i uses columns j <
// length and, if causal, only those with j ≤ i. Other columns count as −∞. Exponentials and sums are in the
// accumulation type.
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

// In place: scores become probabilities. The probabilities of unused columns become zero.
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);
// In place: on entry d is the gradient of the probabilities p. On return it is the gradient of the scores:
// p∘(d − Σ_row p∘d).
void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);

// mask = 1 if x is not zero, else 0.
void nonzero_mask(uint8_t* mask, const void* x, int64_t count, DType dtype, const device::Stream& stream);
// y = mask ? x·scale : 0. y may equal x.
void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype,
                const device::Stream& stream);

namespace ref {
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype);
void softmax_backward(void* d, const void* p, const SoftmaxShape& shape, DType dtype);
void nonzero_mask(uint8_t* mask, const void* x, int64_t count, DType dtype);
void apply_mask(void* y, const void* x, const uint8_t* mask, double scale, int64_t count, DType dtype);
}  // namespace ref

namespace cuda {
void softmax_forward(void* scores, const SoftmaxShape& shape, DType dtype, const device::Stream& stream);
decltype(kernel::softmax_backward) softmax_backward;
decltype(kernel::nonzero_mask) nonzero_mask;
decltype(kernel::apply_mask) apply_mask;
}  // namespace cuda

}  // namespace esp::kernel
