// Stochastic rounding codecs: each value goes to one of its two neighbours on a grid, with the probability that makes
// the mean exact. The random number of element i is word i of the Philox stream (seed, purpose): uniform in [0, 1) with
// 24 bits, so results do not depend on threads or instruction sets. f32.
//
// Encoded runs need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "esp/device/stream.h"
#include "esp/kernel/quantize.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

struct RandomKey {
  uint64_t seed = 0, purpose = 0;
};

// The format of kernel/quantize.h with stochastic rounding of x/scale.
void quantize_stochastic(void* encoded, const float* x, int64_t count, const BlockCode& code, const RandomKey& chance,
                         const device::Stream& stream);

// QSGD (Alistarh et al. 2017): per bucket its norm ‖x‖₂ as fp32; each value is a sign and a level of |x|/norm·levels.
// First the norms, then codes of 1 + ⌈log₂(levels + 1)⌉ bits, lowest first, the sign in the highest bit. Buckets are
// multiples of 8, so each starts at a byte. A non-finite bucket decodes to NaN.
struct QsgdCode {
  int64_t levels = 16;  // to 32767
  int64_t bucket = 512;
  int bits() const;
};
size_t qsgd_bytes(int64_t count, const QsgdCode& code);
void qsgd_encode(void* encoded, const float* x, int64_t count, const QsgdCode& code, const RandomKey& chance,
                 const device::Stream& stream);
// Returns false for a level above `levels`, which no encoder writes.
bool qsgd_decode(float* y, WriteMode into, const void* encoded, int64_t count, const QsgdCode& code,
                 const device::Stream& stream);

// Natural compression (Horváth et al. 2019): |x| to a power of two. All exponents as bytes, then the signs, eight per
// byte. Below 2^-126 the neighbours are 0 and 2^-126; from 2^127 up there is no higher neighbour; non-finite values
// decode to an infinity.
size_t natural_bytes(int64_t count);
void natural_encode(void* encoded, const float* x, int64_t count, const RandomKey& chance,
                    const device::Stream& stream);
void natural_decode(float* y, WriteMode into, const void* encoded, int64_t count, const device::Stream& stream);

// Arbitrary ascending levels, at least two: each value goes to a neighbouring level, values beyond the ends to the end.
// Codes are level indices in `bits` bits. Returns false if x contains a NaN.
int level_bits(int64_t num_levels);
bool levels_encode(void* encoded, const float* x, int64_t count, std::span<const float> levels,
                   const RandomKey& chance);
// Returns false for an index past the last level.
bool levels_decode(float* y, WriteMode into, const void* encoded, int64_t count, std::span<const float> levels);

// Inner loops: codes of `count` values given the random numbers u, as `ref` and as vectors.
namespace ref {
void random_block_codes(int8_t* codes, const float* x, const float* u, int64_t count, float scale, float top);
void qsgd_codes(uint16_t* codes, const float* x, const float* u, int64_t count, float steps_per_unit, int64_t levels,
                int sign_bit);
uint16_t qsgd_values(float* y, WriteMode into, const uint16_t* codes, int64_t count, float unit, int sign_bit);
void natural_codes(uint8_t* exponents, uint8_t* signs, const float* x, const float* u, int64_t count);
void natural_values(float* y, WriteMode into, const uint8_t* exponents, const uint8_t* signs, int64_t count);
}  // namespace ref

}  // namespace esp::kernel
