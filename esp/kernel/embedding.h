// Embedding lookup, its scatter-add gradient, and rotary positions.
//
// forward overwrites y [count, dim]; ids outside [0, num_rows) give zero rows (a vocabulary shard looks up its own
// rows). backward adds to dtable in the order of ids, so repeated ids accumulate deterministically; additions of one
// call to a row of a 16-bit table are summed in fp32 and rounded once.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/rotary_angles.h"

namespace esp::kernel {

// y[i] = table[ids[i]] (+ positions[pos(i)] where `positions` is given, pos(i) = first_position + i mod period).
void embedding_forward(void* y, const int32_t* ids, const void* table, const void* positions, int64_t count,
                       int64_t dim, int64_t num_rows, int64_t period, int64_t first_position, DType dtype,
                       const device::Stream& stream);
void embedding_backward(void* dtable, const int32_t* ids, const void* dy, int64_t count, int64_t dim, int64_t num_rows,
                        DType dtype, const device::Stream& stream);
// dpositions[first_position + i mod period] += dy[i]
void position_backward(void* dpositions, const void* dy, int64_t count, int64_t dim, int64_t period,
                       int64_t first_position, DType dtype, const device::Stream& stream);

// Rotates pairs (d, d + D/2) of every head in place by the angles of their positions (half-split convention). x has
// rows of `row_stride` elements; the first heads·head_dim are rotated. inverse rotates back (the gradient; scale
// factors apply likewise).
struct RotaryShape {
  int64_t rows = 0, row_stride = 0, heads = 0, head_dim = 0;
  int64_t period = 0, first_position = 0;  // row r has position first_position + r mod period − begin
  int64_t begin = 0, end = 0;              // rotated rows of each period; end 0: all
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
