// Activation backward in one pass over its argument and the gradient: derivative times gradient, column sums and, if
// the output was not kept, that output again for the next weight gradient. In place. No CUDA types here.
#pragma once

#include "esp/kernel/activation.h"

namespace esp::kernel::cuda {

// d ← d∘act'(pre) and, with `output_again`, pre ← act(pre), rows × cols. `db` [cols], where given, = (or += with
// `add_to_db`) the sums of d's columns as they then are.
void activation_slope(void* d, void* pre, bool output_again, int64_t rows, int64_t cols, Activation activation,
                      void* db, bool add_to_db, DType dtype, const device::Stream& stream);

// pre = [gate | up] ← the gradients of both, d (by the product, `width` wide) ← silu(gate)∘up.
void swiglu_again(void* d, void* pre, int64_t rows, int64_t width, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
