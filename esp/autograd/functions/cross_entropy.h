// Losses. Targets are i32, one per row; negative targets are ignored.
//
// The gradient that backward seeds a loss with must be 1: its scale (1/counted tokens, the loss scale) is known before
// forward and passed as `scale`, so the fused form computes the gradient while the logits are in cache.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

struct Loss {
  Variable total;         // [1], f64: the sum over counted rows, unscaled; seed it with `unit_seed`
  tensor::Tensor losses;  // [rows] in the accumulation type
};

// Cross entropy of the rows of `logits`.
Loss cross_entropy(Tape& tape, const Variable& logits, const tensor::Tensor& targets, double scale);

// Fused linear cross entropy of x·Wᵀ + b with W [classes, in], a block of rows at a time: only one block's logits are
// ever stored. Gradients are computed in forward: W's is added there, x's is kept for backward.
Loss linear_cross_entropy(Tape& tape, const Variable& x, Weight& w, Weight* b, const tensor::Tensor& targets,
                          double scale);

// Rows per block when one row has `row_bytes` of logits.
int64_t rows_of_block(int64_t rows, int64_t row_bytes, device::DeviceKind kind = device::DeviceKind::cpu);

// Seeds the loss and runs the whole backward pass.
void backward(Tape& tape, const Loss& loss);
void seed(Tape& tape, const Loss& loss);

}  // namespace esp::autograd
