// Tensors that host code reads and writes.
#pragma once

#include "esp/tensor/tensor.h"

namespace esp::tensor {

// Allocates an uninitialised tensor that the host can access. If the context is on a GPU, the memory is pageable host
// memory (device/host_pool.h); otherwise it comes from the context's pool.
Tensor empty_on_host(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);

}  // namespace esp::tensor
