// is_cuda: true for a CUDA GPU and for a stream on one. In builds without CUDA a GPU stream cannot be created
// (device/gpu.h throws), and the CUDA implementations are stubs that throw.
#pragma once

#include "esp/device/stream.h"

namespace esp::device {

inline bool is_cuda(const Device& device) {
  return device.kind == DeviceKind::cuda;
}
inline bool is_cuda(const Stream& stream) {
  return is_cuda(stream.device);
}

}  // namespace esp::device
