#include "esp/kernel/cuda_dispatch.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::kernel {

void throw_no_cuda_kernel(std::string_view kernel) {
  throw DeviceError(fmt::format("kernel {} has no GPU version. Use run.device = \"cpu\"", kernel));
}

}  // namespace esp::kernel
