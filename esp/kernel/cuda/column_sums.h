// Column sums that can overwrite the result, so that the caller does not have to clear a bias gradient first.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel::cuda {

// Computes to[c] = Σ_chunk sums[chunk][c] for c < cols; if `accumulate` is set, adds the sum to to[c]. `sums` is
// [chunks, cols] of f32 (f64 if dtype is f64).
void add_chunk_sums(void* to, bool accumulate, const void* sums, int64_t chunks, int64_t cols, DType dtype,
                    const device::Stream& stream);

// Computes to[c] = Σ_r dy[r][c]; if `accumulate` is set, adds the sum to to[c].
void column_sums_to(void* to, bool accumulate, const void* dy, int64_t rows, int64_t cols, DType dtype,
                    const device::Stream& stream);

}  // namespace esp::kernel::cuda
