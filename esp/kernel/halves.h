// Split master weights: an fp32 number as the bf16 it rounds to plus its lower 16 bits. 2 bytes beside a bf16 weight
// instead of a 4-byte master copy. On the host.
//
// The bf16 is rounded to nearest even; `low` holds the lower 16 bits unchanged and implies the rounding direction. Ties
// would be ambiguous: split_halves moves such a number by one unit in its last place towards its bf16, one number in
// 65536. All other numbers except NaNs are restored exactly.
#pragma once

#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void split_halves(uint16_t* low, const float* x, int64_t count, const device::Stream& stream);
// `high`: the bf16 values.
void join_halves(float* x, const void* high, const uint16_t* low, int64_t count, const device::Stream& stream);

}  // namespace esp::kernel
