// Device dispatch: each public function, in cpu/, starts with
//   if (on_cuda(stream)) return cuda::fill(y, value, count, dtype, stream);
// or, without a CUDA body, with refuse_cuda(stream, "top_k"). There is no fallback.
#pragma once

#include <string_view>

#include "esp/device/on_cuda.h"

namespace esp::kernel {

using device::on_cuda;
[[noreturn]] void no_cuda_body(std::string_view kernel);

inline void refuse_cuda(const device::Stream& stream, std::string_view kernel) {
  if (on_cuda(stream)) no_cuda_body(kernel);
}

}  // namespace esp::kernel
