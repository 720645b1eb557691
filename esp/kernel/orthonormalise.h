// Gram–Schmidt on the rows of a small flat matrix (rows × count, row-major, f32), in place.
//
// Rows are processed in order and projected twice against the previous ones, so that nearly dependent rows come out
// orthogonal. A row with only rounding left (10⁻⁶ of its length) becomes zeros. Sums in fp64 over blocks of 4096 in
// order. One thread; bit-identical on all machines of one instruction set.
#pragma once

#include <cstdint>

namespace esp::kernel {

void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);

namespace ref {
void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);
}

}  // namespace esp::kernel
