// Dropout without stored masks. The mask is a function of the key and the element's global index. Recomputation and
// every partition of the tensor therefore use the same mask.
//
// A key selects a Philox stream (base/rng.h). The element with global index i uses word i % 4 of the counter (i / 4,
// key). An element is kept and divided by (1 − rate) if its 32-bit word >= rate·2^32. Otherwise it becomes 0. Kernels
// with fused dropout follow the same rule.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct DropoutKey {
  uint64_t seed = 0;     // seed of the training run (run.seed)
  uint64_t purpose = 0;  // step, micro-batch and layer, combined to one number by the caller
};

// A part of a global tensor: local element (row, col) has the global index (first_row + row)·row_stride + first_col +
// col.
struct DropoutShape {
  int64_t rows = 0, cols = 0;
  int64_t first_row = 0, first_col = 0, row_stride = 0;  // row_stride 0 means `cols`
  double rate = 0;
};

// y = x/(1 − rate) for kept elements and 0 for the others, plus `residual` if given. Backward is the same function
// applied to dy. y may equal x or residual.
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream);

namespace ref {
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype);
}

namespace cuda {
decltype(kernel::dropout) dropout;
}  // namespace cuda

}  // namespace esp::kernel
