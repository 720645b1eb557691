// The three GEMMs of a linear layer: forward, input gradient and weight gradient. Tensors are viewed as matrices with
// the last dimension as columns.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/gemm.h"

namespace esp::autograd {

// y = x·W (W [in, out]) with the epilogue of `options`.
tensor::Tensor forward_gemm(const tensor::Context& context, const tensor::Tensor& x, const tensor::Tensor& w,
                            const kernel::GemmOptions& options = {});
// dx = dy·Wᵀ with the epilogue of `options`. Overwrites `into` or adds to it.
void input_grad_gemm(const tensor::Context& context, const GradientTarget& into, const tensor::Tensor& dy,
                     const tensor::Tensor& w, const kernel::GemmOptions& options = {});
// dW += xᵀ·dy and, with a bias, db += Σ_rows dy. `dy_sums` may already hold the sums of dy (Tape::column_sums_of).
// `ragged` has the same meaning as in GemmOptions.
void weight_grad_gemm(const tensor::Context& context, Weight& w, Weight* b, const tensor::Tensor& x,
                      const tensor::Tensor& dy, const tensor::Tensor& dy_sums = {}, bool ragged = false);

}  // namespace esp::autograd
