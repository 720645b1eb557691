// Backward through an activation whose output was not kept, in one pass: what it needs is read once, and the output is
// written again on the way, for the gradient of the weights after it. Both results take the places of what was read. No
// CUDA types here.
#pragma once

#include "esp/kernel/activation.h"

namespace esp::kernel::cuda {

// d ← d∘act'(pre) and pre ← act(pre), rows × cols. `db` [cols], where given, = (or += with `add_to_db`) the sums of d's
// columns as they then are.
void activation_again(void* d, void* pre, int64_t rows, int64_t cols, Activation activation, void* db, bool add_to_db,
                      DType dtype, const device::Stream& stream);

// pre = [gate | up] ← the gradients of both, d (by the product, `width` wide) ← silu(gate)∘up.
void swiglu_again(void* d, void* pre, int64_t rows, int64_t width, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
