// GEMM settings of a queue, for run setup. No CUDA types here.
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

// The algorithms chosen so far as text, to be saved for a later run, and restored. Lines of another GPU model or
// library version are ignored; UsageError if the text cannot be parsed.
std::string gemm_choices(const device::Stream& stream);
void read_gemm_choices(std::string_view text, const device::Stream& stream);

}  // namespace esp::kernel::cuda
