// Copies of flat buffers that ranks exchange. Buffers may not overlap. Any alignment. Thread-safe.
//
// `copy` writes through the cache, for data that is read soon. `copy_streaming` uses non-temporal stores: a large
// copy does not fetch the cache lines that it overwrites and does not evict other lines. Non-temporal stores are
// unordered, so call `finish_streaming` before you set a flag that marks the data as ready for other ranks.
// `finish_streaming` waits for memory, so call it once after many copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void copy(void* dst, const void* src, size_t bytes);
void copy_streaming(void* dst, const void* src, size_t bytes);
void finish_streaming();

// Copies `rows` rows of `bytes` bytes each. Source and destination have separate strides.
void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream);

namespace cuda {
decltype(kernel::copy_rows) copy_rows;
}

}  // namespace esp::kernel
