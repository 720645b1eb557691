// FP8 linear layers on GPUs: the operands of all three GEMMs are fp8, e4m3 for values and e5m2 for gradients, with a
// delayed scale per tensor; results, biases and sums are unchanged (bf16, fp32).
//
// Inputs and gradients needed by backward are kept in fp8, transposed, one byte per element; the bf16 tensor may be
// freed.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

bool fp8_enabled(const tensor::Context& context);  // kernel::cuda::wants_fp8, on a GPU
// Whether fp8 is enabled and the tensors are supported: bf16, rows and both widths multiples of 16, 16-byte aligned
// addresses. `x` need not be the layer's own input, only have as many rows.
bool fp8_applicable(const tensor::Context& context, const Variable& x, const Weight& w, const Weight* b);

Variable fp8_linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// The scales of these weights' layers, scale_numbers() each: saved in checkpoints so that resuming is bit-identical.
int64_t scale_numbers();
void save_scales(float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);
void load_scales(const float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);

struct Fp8Mlp {
  Weight& w1;
  Weight* b1;
  Weight& w2;
  Weight* b2;
  kernel::Activation activation;
  bool gated;  // SwiGLU: W1 [in, 2·hidden] = [gate | up]
  bool keep;   // else the activation's output is recomputed for backward
};
Variable fp8_mlp(Tape& tape, const Variable& x, const Fp8Mlp& p);

}  // namespace esp::autograd
