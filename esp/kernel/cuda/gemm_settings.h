// How a queue's matrix products are run; for those who set up a run. No CUDA types here.
#pragma once

#include <string>
#include <string_view>

#include "esp/device/stream.h"

namespace esp::kernel::cuda {

struct GemmSettings {
  bool tune = true;   // time the candidates when a shape is first seen
  bool tf32 = false;  // f32 products in tf32: eight times the rate, ten bits of mantissa
  bool fp8 = false;   // linear maps of bf16 by products of 8-bit codes (fp8_codes.h)
};
void set_gemm(const GemmSettings& settings, const device::Stream& stream);

// The algorithms chosen so far, as lines of text to be kept for a later run; and back. Reading what another GPU or
// library wrote changes nothing; UsageError when it is not such text.
std::string gemm_choices(const device::Stream& stream);
void read_gemm_choices(std::string_view text, const device::Stream& stream);

}  // namespace esp::kernel::cuda
