// GEMM settings of a GPU queue, set when training starts. No CUDA types here.
#pragma once

#include <string>
#include <string_view>

#include "esp/device/stream.h"

namespace esp::kernel::cuda {

struct GemmSettings {
  bool tune = true;   // time the candidate algorithms when a shape is first used
  bool tf32 = false;  // f32 GEMMs use tf32: eight times as fast, with ten bits of mantissa
  bool fp8 = false;   // bf16 linear layers use fp8 GEMMs (fp8_encode.h)
};
void set_gemm(const GemmSettings& settings, const device::Stream& stream);

// gemm_choices returns the algorithms chosen so far as text, to save them for a later run. read_gemm_choices restores
// them. It ignores lines of another GPU model or library version, and throws UsageError if the text cannot be parsed.
std::string gemm_choices(const device::Stream& stream);
void read_gemm_choices(std::string_view text, const device::Stream& stream);

}  // namespace esp::kernel::cuda
