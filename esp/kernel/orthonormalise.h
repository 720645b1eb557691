// Gram–Schmidt on the rows of a small flat matrix (rows × count, row-major, f32), in place.
//
// Rows are taken in order and projected twice on what is left of those before, so that nearly dependent ones come out
// orthogonal too. A row of which nothing but rounding is left (10⁻⁶ of its length) becomes zeros: it would be a
// direction made of noise. Sums in fp64 over blocks of 4096 in order. One thread; the same bits on every machine of one
// instruction set.
#pragma once

#include <cstdint>

namespace esp::kernel {

void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);

namespace ref {
void orthonormalise_rows(float* rows, int64_t num_rows, int64_t count);
}

}  // namespace esp::kernel
