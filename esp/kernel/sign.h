// Sign compression: one bit per element, 1 if x < 0. A byte has eight bits, least significant bit first. The last byte
// is padded with 0.
//
// Zeros of both signs and NaN count as not negative. The sums of magnitudes become NaN if any x is NaN. They are
// computed in fp64 over blocks of 32768 elements, and the block sums are added in order, so the result does not depend
// on the number of threads.
#pragma once

#include <cstdint>

#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

struct SignSums {
  double positive = 0, negative = 0;  // Σ|x| over the elements >= 0, and over the elements < 0
  int64_t num_negative = 0;
};

// Writes the ⌈count/8⌉ bytes of `bits`.
SignSums sign_bits(uint8_t* bits, const float* x, int64_t count, const device::Stream& stream);
// The value of an element is `negative` if its bit is 1, else `not_negative`.
void decode_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count,
                      const device::Stream& stream);

namespace ref {
SignSums sign_bits(uint8_t* bits, const float* x, int64_t count);
void decode_sign_bits(float* y, WriteMode into, const uint8_t* bits, float not_negative, float negative, int64_t count);
}  // namespace ref

}  // namespace esp::kernel
