// Whether work runs on a GPU. In builds without CUDA such a stream cannot be created (device/gpu.h throws), and the
// CUDA bodies are stubs that throw.
#pragma once

#include "esp/device/stream.h"

namespace esp::device {

inline bool on_cuda(const Device& device) {
  return device.kind == DeviceKind::cuda;
}
inline bool on_cuda(const Stream& stream) {
  return on_cuda(stream.device);
}

}  // namespace esp::device
