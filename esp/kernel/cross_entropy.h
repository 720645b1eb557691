// Softmax and cross entropy over rows of logits. The gradient overwrites the logits, so probabilities need no extra
// memory.
//
// Rows with a target < 0 are ignored: they have loss 0 and a zero gradient. Losses and lse (log-sum-exp) are in the
// accumulation type.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

// losses[r] = logsumexp(logits[r]) − logits[r][targets[r]]. Stores lse[r] = logsumexp(logits[r]) if `lse` is not null.
void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream);
// logits[r] ← (softmax(logits[r]) − onehot(targets[r]))·scale, in place. `lse` comes from forward.
void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream);
// Forward and backward in one pass: the gradient of a row is computed while the row is in cache.
void cross_entropy_fused(void* losses, void* logits, const int32_t* targets, double scale, int64_t rows,
                         int64_t num_classes, int64_t row_stride, DType dtype, const device::Stream& stream);
// y[r] = softmax(x[r]); y may equal x.
void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream);

namespace ref {
void cross_entropy_forward(void* losses, void* lse, const void* logits, const int32_t* targets, int64_t rows,
                           int64_t num_classes, int64_t row_stride, DType dtype);
void cross_entropy_backward(void* logits, const void* lse, const int32_t* targets, double scale, int64_t rows,
                            int64_t num_classes, int64_t row_stride, DType dtype);
void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::cross_entropy_forward) cross_entropy_forward;
decltype(kernel::cross_entropy_backward) cross_entropy_backward;
decltype(kernel::cross_entropy_fused) cross_entropy_fused;
void softmax_forward(void* y, const void* x, int64_t rows, int64_t cols, DType dtype, const device::Stream& stream);
}  // namespace cuda

}  // namespace esp::kernel
