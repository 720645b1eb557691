// Column sums that may overwrite: an empty bias gradient need not be cleared first.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel::cuda {

// to[c] = or += Σ_chunk sums[chunk][c] for c < cols, with sums f32 (f64 for f64) [chunks, cols].
void add_chunk_sums(void* to, bool accumulate, const void* sums, int64_t chunks, int64_t cols, DType dtype,
                    const device::Stream& stream);

// to[c] = or += Σ_r dy[r][c]
void column_sums_to(void* to, bool accumulate, const void* dy, int64_t rows, int64_t cols, DType dtype,
                    const device::Stream& stream);

}  // namespace esp::kernel::cuda
