// Attention settings of a GPU queue, set when training starts and by tests. No CUDA types here.
#pragma once

#include "esp/device/stream.h"

namespace esp::kernel::cuda {

struct AttentionSettings {
  bool cudnn = true;          // false: use only Espalier's kernels (attention_tile.cu), not cuDNN
  bool deterministic = true;  // cuDNN backward adds in a fixed order; it needs the T×T matrix dS (16 bits) as scratch
};
void set_attention(const AttentionSettings& settings, const device::Stream& stream);
// Returns the settings of the stream's queue.
AttentionSettings attention_settings(const device::Stream& stream);

}  // namespace esp::kernel::cuda
