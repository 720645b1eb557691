// Copies of flat buffers for data that crosses between ranks.
//
// `copy` keeps what it writes in the cache, for a reader who comes soon. `copy_streaming` writes past the cache
// (non-temporal stores), so that a large result neither fetches the lines it overwrites nor evicts what others still
// need; it ends with a store fence, so a flag stored afterwards publishes the data. No overlap. Any alignment. Safe from
// any thread.
#pragma once

#include <cstddef>

namespace esp::kernel {

void copy(void* dst, const void* src, size_t bytes);
void copy_streaming(void* dst, const void* src, size_t bytes);

}  // namespace esp::kernel
