// Tensors read and written by host code.
#pragma once

#include "esp/tensor/tensor.h"

namespace esp::tensor {

// On a GPU: pageable host memory (device/host_pool.h); otherwise the context's pool.
Tensor empty_on_host(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category);

}  // namespace esp::tensor
