// Sign bits: 1 where x < 0, least significant first, eight per byte, the last byte padded with 0.
//
// Zeros of both signs and NaN count as not negative; a NaN shows in the sums. Sums of magnitudes are in fp64 over
// blocks of 32768 from x[0], added in block order, independent of the number of threads.
#pragma once

#include <cstdint>

#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

struct SignSums {
  double positive = 0, negative = 0;  // Σ|x| of either kind
  int64_t num_negative = 0;
};

// ⌈count/8⌉ bytes.
SignSums sign_bits(uint8_t* bits, const float* x, int64_t count, const device::Stream& stream);
// y = not_negative or negative, by bit.
void from_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count,
                    const device::Stream& stream);

namespace ref {
SignSums sign_bits(uint8_t* bits, const float* x, int64_t count);
void from_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count);
}  // namespace ref

}  // namespace esp::kernel
