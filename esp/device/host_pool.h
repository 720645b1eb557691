// Pageable host memory for a GPU queue, mostly small tables that host code reads and writes between kernels. A copy
// between pageable memory and the GPU returns only when the host may reuse the memory. The pool can therefore reuse a
// freed block immediately; pinned memory would first have to wait for the copy.
#pragma once

#include "esp/device/pool.h"
#include "esp/device/stream.h"

namespace esp::device {

// Returns the queue's pool. The queue's MemoryAccount, if it has one, counts the memory. The stream must be on a GPU.
MemoryPool& host_pool(const Stream& stream);

}  // namespace esp::device
