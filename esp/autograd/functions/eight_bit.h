// Linear maps in 8 bits on a GPU: operands of all three products are codes, e4m3 of values and e5m2 of gradients, with
// a scale per tensor that follows earlier steps; results, biases and sums are as without (bf16, fp32).
//
// What backward needs of an input or a gradient is kept in codes by columns, a byte an element; the tensor itself may
// go.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

bool wants_eight_bits(const tensor::Context& context);  // kernel::cuda::wants_fp8, on a GPU
// Whether the run wants it and the tensors are such that there are products for them: bf16,
// rows and both widths multiples of 16, addresses of 16 bytes. `x` need not be the map's own input, only of as many
// rows.
bool fits_eight_bits(const tensor::Context& context, const Variable& x, const Weight& w, const Weight* b);

Variable eight_bit_linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// The scales of these weights' maps, scale_numbers() to each: what a checkpoint needs so that going on has the bits of
// not having stopped.
int64_t scale_numbers();
void save_scales(float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);
void load_scales(const float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);

struct EightBitPerceptron {
  Weight& w1;
  Weight* b1;
  Weight& w2;
  Weight* b2;
  kernel::Activation activation;
  bool gated;  // SwiGLU: W1 [in, 2·hidden] = [gate | up]
  bool keep;   // else the activation's output is coded again for backward
};
Variable eight_bit_perceptron(Tape& tape, const Variable& x, const EightBitPerceptron& p);

}  // namespace esp::autograd
