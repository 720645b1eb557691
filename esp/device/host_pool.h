// Ordinary memory of the host for a GPU's queue: what the host's own code reads and writes beside the kernels, small
// tables mostly. A copy between it and the GPU returns when the host may use its side again, so it can be given back
// and lent again at once, which pinned memory cannot.
#pragma once

#include "esp/device/pool.h"
#include "esp/device/stream.h"

namespace esp::device {

// The queue's, on its account where it has one. Only for a stream on a GPU.
Pool& host_pool(const Stream& stream);

}  // namespace esp::device
