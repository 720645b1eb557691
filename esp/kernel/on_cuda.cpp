#include "esp/kernel/on_cuda.h"

#include <fmt/format.h>

#include "esp/base/error.h"

namespace esp::kernel {

void no_cuda_body(std::string_view kernel) {
  throw DeviceError(fmt::format("kernel {} does not run on a GPU; use run.device = \"cpu\" for it", kernel));
}

}  // namespace esp::kernel
