// Whether work goes to a GPU: the one question each kernel asks. Where the CUDA parts were not compiled there is no way
// to make such a stream (device/gpu.h throws), and what would be called then is a stub that throws too.
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
