// Copies of flat buffers for data that crosses between ranks.
//
// `copy` keeps what it writes in the cache, for a reader who comes soon. `copy_streaming` writes past the cache
// (non-temporal stores), so that a large result neither fetches the lines it overwrites nor evicts what others still
// need. Such stores are not ordered with others: call `finish_streaming` before a flag that tells of the data; one for
// many copies, since it waits for memory. No overlap. Any alignment. Safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void copy(void* dst, const void* src, size_t bytes);
void copy_streaming(void* dst, const void* src, size_t bytes);
void finish_streaming();

// Rows of `bytes`, so far from each other in either matrix.
void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream);

namespace cuda {
decltype(kernel::copy_rows) copy_rows;
}

}  // namespace esp::kernel
