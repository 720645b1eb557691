// Embedding lookup, its gradient (scatter-add), and rotary position embedding (RoPE).
//
// forward overwrites y [count, dim]. Ids outside [0, num_rows) give zero rows: a vocabulary shard looks up only its own
// rows. backward adds to dtable in the order of ids, so repeated ids give deterministic sums. For 16-bit tables, all
// gradients of a row in one call are summed in fp32 and rounded once.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/rotary_angles.h"

namespace esp::kernel {

// y[i] = table[ids[i]]. If `positions` is given, adds positions[first_position + i mod period] to y[i].
void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype,
                       const device::Stream& stream);
void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype, const device::Stream& stream);
// Gradient of `positions`: dpositions[first_position + i mod period] += dy[i].
void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype, const device::Stream& stream);

// Rotates pairs (d, d + D/2) of every head in place, by the angles of their positions (half-split convention). Rows of
// x have `row_stride` elements; the first heads·head_dim of them are rotated. `inverse` rotates back, which gives the
// gradient. Scale factors are applied in the same way in both directions.
struct RotaryShape {
  int64_t rows = 0, row_stride = 0, heads = 0, head_dim = 0;
  int64_t period = 0, first_position = 0;  // position of row r: first_position + r mod period − begin
  int64_t begin = 0, end = 0;              // rows of each period that are rotated: [begin, end); end 0 means `period`
  RotaryAngles angles;
  bool inverse = false;

  int64_t last() const { return end ? end : period; }
};
void rotary(void* x, const RotaryShape& shape, DType dtype, const device::Stream& stream);

namespace ref {
void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype);
void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype);
void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype);
void rotary(void* x, const RotaryShape& shape, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::embedding_forward) embedding_forward;
decltype(kernel::embedding_backward) embedding_backward;
decltype(kernel::position_backward) position_backward;
decltype(kernel::rotary) rotary;
}  // namespace cuda

}  // namespace esp::kernel
