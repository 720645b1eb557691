// Activation backward in one pass over the activation's argument and the output gradient. In place, it multiplies the
// gradient by the activation's derivative, and it computes column sums of the result. If the activation's output was
// not stored, it also recomputes that output, for the weight gradient of the next layer. No CUDA types here.
#pragma once

#include "esp/kernel/activation.h"

namespace esp::kernel::cuda {

// d ← d∘act'(pre). With `recompute_output` also pre ← act(pre). Both are rows × cols. `db` [cols], if not null,
// receives the column sums of the new d: they are added to db if `add_to_db` is set, else they overwrite it.
void activation_backward_fused(void* d, void* pre, bool recompute_output, int64_t rows, int64_t cols,
                               Activation activation, void* db, bool add_to_db, DType dtype,
                               const device::Stream& stream);

// On entry pre = [gate | up], and d is the gradient of silu(gate)∘up, with rows of `width` elements. On return pre
// holds the gradients of gate and up, and d holds silu(gate)∘up.
void swiglu_backward_fused(void* d, void* pre, int64_t rows, int64_t width, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
