// Dropout without stored masks: whether an element is kept is a function of the key and the element's global index, so
// recomputation and any split of the tensor draw the same mask.
//
// The stream of a key is Philox (base/rng.h) with counter = (global index / 4, key) and word = index % 4; an element is
// kept when its 32-bit word >= rate·2^32, and then divided by (1 − rate). Kernels that fuse dropout use the same rule.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct DropoutKey {
  uint64_t seed = 0;     // of the run
  uint64_t purpose = 0;  // step, micro-batch and layer folded together by the caller
};

// Element (row, col) of the piece at hand is global element (first_row + row)·row_stride + first_col + col.
struct DropoutShape {
  int64_t rows = 0, cols = 0;
  int64_t first_row = 0, first_col = 0, row_stride = 0;  // row_stride 0: cols
  double rate = 0;
};

// y = keep ? x/(1−rate) : 0, plus residual where given. Forward and, with dy for x, backward. y may equal x or
// residual.
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream);

namespace ref {
void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype);
}

namespace cuda {
decltype(kernel::dropout) dropout;
}  // namespace cuda

}  // namespace esp::kernel
