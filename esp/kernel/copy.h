// Copies of flat buffers that are exchanged between ranks.
//
// `copy` writes into the cache, for a reader that follows soon. `copy_streaming` uses non-temporal stores, so that a
// large result neither fetches the lines it overwrites nor evicts useful lines. Non-temporal stores are unordered: call
// `finish_streaming` before setting a flag that announces the data; one call for many copies, since it waits for
// memory. No overlap. Any alignment. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void copy(void* dst, const void* src, size_t bytes);
void copy_streaming(void* dst, const void* src, size_t bytes);
void finish_streaming();

// Rows of `bytes`, with a stride for each matrix.
void copy_rows(void* dst, size_t dst_stride, const void* src, size_t src_stride, size_t bytes, int64_t rows,
               const device::Stream& stream);

namespace cuda {
decltype(kernel::copy_rows) copy_rows;
}

}  // namespace esp::kernel
