// Tensors the host's own code reads and writes, whatever the context's kernels run on.
#pragma once

#include "esp/tensor/tensor.h"

namespace esp::tensor {

// On a GPU ordinary memory of the host (device/host_pool.h), else the context's.
Tensor empty_on_host(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);

}  // namespace esp::tensor
