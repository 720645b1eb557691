// FP8 linear layers on GPUs. The operands of all three GEMMs are fp8: e4m3 for values, e5m2 for gradients. Scaling is
// delayed: the scale of a tensor comes from its largest magnitudes in earlier steps. GEMM results, biases and sums keep
// their types (bf16, fp32).
//
// Inputs and gradients that backward needs are saved as transposed fp8 copies, one byte per element. Their bf16 tensors
// may be freed.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"

namespace esp::autograd {

bool fp8_enabled(const tensor::Context& context);  // true on a GPU with kernel::cuda::uses_fp8
// True if fp8 is enabled and supports these tensors: dtype bf16; numbers of rows and of input columns are multiples of
// 16, the number of output columns is a multiple of 32; addresses are aligned to 16 bytes. `x` may be any tensor with
// as many rows as the layer's input.
bool fp8_applicable(const tensor::Context& context, const Variable& x, const Weight& w, const Weight* b);

Variable fp8_linear(Tape& tape, const Variable& x, Weight& w, Weight* b);

// Save and load the fp8 scales that belong to these weights: scale_state_size() floats per weight. Checkpoints contain
// the scales, so that a resumed training run is bit-identical.
int64_t scale_state_size();
void save_scales(float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);
void load_scales(const float* numbers, std::span<const Weight* const> weights, const device::Stream& stream);

struct Fp8Mlp {
  Weight& w1;
  Weight* b1;
  Weight& w2;
  Weight* b2;
  kernel::Activation activation;
  bool gated;  // SwiGLU: W1 [in, 2·hidden] = [gate | up]
  bool keep;   // false: backward recomputes the activation's output
};
Variable fp8_mlp(Tape& tape, const Variable& x, const Fp8Mlp& p);

}  // namespace esp::autograd
