// Dropout without stored masks: the mask is a function of the key and the element's global index, so recomputation and
// any partition of the tensor draw the same mask.
//
// The stream of a key is Philox (base/rng.h) with counter = (global index / 4, key) and word = index % 4. An element is
// kept if its 32-bit word >= rate·2^32, and then divided by (1 − rate). Kernels with fused dropout follow the same
// rule.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct DropoutKey {
  uint64_t seed = 0;     // of the run
  uint64_t purpose = 0;  // step, micro-batch and layer folded together by the caller
};

// Local element (row, col) is global element (first_row + row)·row_stride + first_col + col.
struct DropoutShape {
  int64_t rows = 0, cols = 0;
  int64_t first_row = 0, first_col = 0, row_stride = 0;  // row_stride 0: cols
  double rate = 0;
};

// y = keep ? x/(1−rate) : 0, plus residual if given. Also the backward, with dy for x. y may equal x or residual.
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream);

namespace ref {
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype);
}

namespace cuda {
decltype(kernel::dropout) dropout;
}  // namespace cuda

}  // namespace esp::kernel
