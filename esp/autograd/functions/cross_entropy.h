// Cross-entropy loss. Targets are i32, one per row. Rows with a negative target are ignored.
//
// `scale` multiplies the gradients: the loss scale divided by the number of counted tokens. Forward takes it because
// the fused form computes the gradient in forward, while the logits are in cache. Backward must seed a loss with the
// gradient 1.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

struct Loss {
  Variable total;         // [1], f64: unscaled sum of the losses of all counted rows; `backward` below seeds it with 1
  tensor::Tensor losses;  // [rows], in the accumulation type: loss of each row
};

// Cross entropy of the rows of `logits`.
Loss cross_entropy(Tape& tape, const Variable& logits, const tensor::Tensor& targets, double scale);

// Fused linear cross entropy of x·Wᵀ + b with W [classes, in]. Rows are processed in blocks; only the logits of one
// block exist at a time. Forward also computes the gradients: it adds to W's gradient, and keeps x's gradient for
// backward.
Loss linear_cross_entropy(Tape& tape, const Variable& x, Weight& w, Weight* b, const tensor::Tensor& targets,
                          double scale);

// Number of rows per block if one row of logits has `row_bytes` bytes.
int64_t rows_of_block(int64_t rows, int64_t row_bytes, device::DeviceKind kind = device::DeviceKind::cpu);

// Seeds the loss and runs the whole backward pass.
void backward(Tape& tape, const Loss& loss);
void seed(Tape& tape, const Loss& loss);

}  // namespace esp::autograd
