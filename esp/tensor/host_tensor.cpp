#include "esp/tensor/host_tensor.h"

#include "esp/device/host_pool.h"
#include "esp/device/is_cuda.h"

namespace esp::tensor {

Tensor empty_on_host(const Context& context, const Shape& shape, DType dtype, device::MemoryCategory category) {
  if (!device::is_cuda(context.stream)) return empty(context, shape, dtype, category);
  return Tensor(device::host_pool(context.stream), shape, dtype, category);
}

}  // namespace esp::tensor
