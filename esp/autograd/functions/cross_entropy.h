// Losses. Targets are i32, one per row; a negative one is not counted.
//
// The gradient that backward seeds a loss with must be 1: what scales it (1/counted tokens, the loss scale) is known
// before forward and given as `scale`, so the fused form can make the gradient while the logits are in cache.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

struct Loss {
  Variable total;         // [1], f64: the sum over counted rows, unscaled; seed it with `unit_seed`
  tensor::Tensor losses;  // [rows] in the accumulation type
};

// Cross entropy of the rows of `logits`.
Loss cross_entropy(Tape& tape, const Variable& logits, const tensor::Tensor& targets, double scale);

// Cross entropy of x·Wᵀ + b with W [classes, in], a block of rows at a time: the logits of one block are all that is
// ever stored. Gradients are made in forward: W's is added there, x's is kept for backward.
Loss linear_cross_entropy(Tape& tape, const Variable& x, Weight& w, Weight* b, const tensor::Tensor& targets,
                          double scale);

// How many rows it takes at a time when those of one have `row_bytes` of logits.
int64_t rows_of_block(int64_t rows, int64_t row_bytes, device::DeviceKind kind = device::DeviceKind::cpu);

// Seeds the loss and runs the whole backward.
void backward(Tape& tape, const Loss& loss);
void seed(Tape& tape, const Loss& loss);

}  // namespace esp::autograd
