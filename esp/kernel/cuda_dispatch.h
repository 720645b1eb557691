// Device dispatch. The public functions are defined in cpu/. Each of them starts with
//   if (is_cuda(stream)) return cuda::fill(y, value, count, dtype, stream);
// or, if it has no CUDA version, with require_cpu(stream, "top_k"). There is no fallback to the CPU.
#pragma once

#include <string_view>

#include "esp/device/is_cuda.h"

namespace esp::kernel {

using device::is_cuda;
[[noreturn]] void throw_no_cuda_kernel(std::string_view kernel);

inline void require_cpu(const device::Stream& stream, std::string_view kernel) {
  if (is_cuda(stream)) throw_no_cuda_kernel(kernel);
}

}  // namespace esp::kernel
