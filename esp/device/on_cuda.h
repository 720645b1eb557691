// Whether work goes to a GPU. Where the CUDA parts were not compiled it never does, and asking costs nothing: there is
// then no way to make such a stream (device/gpu.h throws).
#pragma once

#include "esp/device/stream.h"

namespace esp::device {

#ifdef ESP_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

inline bool on_cuda(const Device& device) {
  return kCudaBuilt && device.kind == DeviceKind::cuda;
}
inline bool on_cuda(const Stream& stream) {
  return on_cuda(stream.device);
}

}  // namespace esp::device
