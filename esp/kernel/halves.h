// An fp32 number as the bf16 it rounds to and the 16 bits that rounding drops, so that who has the one keeps the other
// only: 2 bytes beside a bf16 value instead of a master copy of 4. On the host.
//
// The upper half is the number's rounded to nearest even; `low` are its lower 16 bits as they are, and say which way it
// was rounded. Exactly half way they would not: split_halves moves such a number by one unit of its last place towards
// where it rounds to, one in 65536. Everything else comes back to the bit, but for numbers that are none.
#pragma once

#include <cstdint>

#include "esp/device/stream.h"

namespace esp::kernel {

void split_halves(uint16_t* low, const float* x, int64_t count, const device::Stream& stream);
// `high`: bf16, what the numbers round to.
void join_halves(float* x, const void* high, const uint16_t* low, int64_t count, const device::Stream& stream);

}  // namespace esp::kernel
