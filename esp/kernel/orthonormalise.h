// Gram–Schmidt orthonormalisation of the rows of a small matrix (num_rows × count, row-major, f32), in place.
//
// Rows are processed in order. Each row is projected twice against the previous rows, so that nearly dependent rows
// also become orthogonal. If the projections reduce the length of a row to 10⁻⁶ or less of its original length, the
// rest is rounding error and the row is set to zero. Dot products are summed in fp32 over blocks of 4096 elements; the
// block sums are added in order in fp64. The function runs on one thread. Results are bit-identical on all machines
// with the same instruction set.
#pragma once

#include <cstdint>

namespace esp::kernel {

void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);

namespace ref {
void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);
}

}  // namespace esp::kernel
