// Pageable host memory for a GPU's queue, for data that host code reads and writes beside the kernels, mostly small
// tables. A copy to or from the GPU returns when the host may reuse its side, so the memory can be recycled at once,
// unlike pinned memory.
#pragma once

#include "esp/device/pool.h"
#include "esp/device/stream.h"

namespace esp::device {

// The queue's pool, charged to its account if it has one. Only for a stream on a GPU.
MemoryPool& host_pool(const Stream& stream);

}  // namespace esp::device
