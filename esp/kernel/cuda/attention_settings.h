// Attention settings of a queue, for run setup and tests. No CUDA types here.
#pragma once

#include "esp/device/stream.h"

namespace esp::kernel::cuda {

struct AttentionSettings {
  bool cudnn = true;  // false: our own kernels alone
  bool deterministic =
      true;  // backward whose sums have one order; it stores the T×T matrix of dS in 16 bits as scratch
};
void set_attention(const AttentionSettings& settings, const device::Stream& stream);
// Whether cuDNN would be asked for this queue's 16-bit attention, and in which way.
AttentionSettings attention_settings(const device::Stream& stream);

}  // namespace esp::kernel::cuda
