// The three products of a linear map, on tensors seen as rows × last dimension.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/gemm.h"

namespace esp::autograd {

// y = x·W (W [in, out]) with the epilogue of `options`.
tensor::Tensor forward_product(const tensor::Context& context, const tensor::Tensor& x, const tensor::Tensor& w,
                               const kernel::GemmOptions& options = {});
// dx = dy·Wᵀ, over or onto `into`, with the epilogue of `options`.
void input_product(const tensor::Context& context, const GradientTarget& into, const tensor::Tensor& dy,
                   const tensor::Tensor& w, const kernel::GemmOptions& options = {});
// dW += xᵀ·dy and, where there is a bias, db += Σ_rows dy, which `dy_sums` may have (Tape::column_sums_of). `ragged` as
// in GemmOptions.
void weight_product(const tensor::Context& context, Weight& w, Weight* b, const tensor::Tensor& x,
                    const tensor::Tensor& dy, const tensor::Tensor& dy_sums = {}, bool ragged = false);

}  // namespace esp::autograd
