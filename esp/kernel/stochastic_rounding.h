// Compression codecs with stochastic rounding for f32 (QSGD, natural compression, quantisation levels). Each value is
// rounded to one of its two neighbours on a grid, with probabilities that make the expected value exact. The random
// number of element i is word i of the Philox stream (seed, purpose), as a uniform number in [0, 1) with 24 bits.
// Results therefore do not depend on threads or instruction sets.
//
// Encoded buffers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "esp/device/stream.h"
#include "esp/kernel/quantize.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

struct PhiloxKey {
  uint64_t seed = 0, purpose = 0;
};

// The format of kernel/quantize.h, but x/scale is rounded stochastically.
void quantize_stochastic(void* encoded, const float* x, int64_t count, const BlockFormat& format, const PhiloxKey& key,
                         const device::Stream& stream);

// QSGD (Alistarh et al. 2017). A bucket stores its norm ‖x‖₂ as fp32. A value stores its sign and its level:
// |x|/norm·levels, rounded stochastically. Format: first the norms, then encoded values of 1 + ⌈log₂(levels + 1)⌉ bits,
// lowest bit first, with the sign in the highest bit. Bucket sizes are multiples of 8, so each bucket starts at a byte.
// A bucket with non-finite values decodes to NaN.
struct QsgdFormat {
  int64_t levels = 16;  // number of levels above 0; at most 32767
  int64_t bucket = 512;
  int bits() const;
};
size_t qsgd_bytes(int64_t count, const QsgdFormat& format);
void qsgd_encode(void* encoded, const float* x, int64_t count, const QsgdFormat& format, const PhiloxKey& key,
                 const device::Stream& stream);
// Returns false if the input contains a level above `levels`, which qsgd_encode never writes.
bool qsgd_decode(float* y, WriteMode into, const void* encoded, int64_t count, const QsgdFormat& format,
                 const device::Stream& stream);

// Natural compression (Horváth et al. 2019): rounds |x| to a power of two. Format: the exponents of all values, one
// byte each, then the signs, eight per byte. Below 2^-126 the neighbours are 0 and 2^-126. From 2^127 on there is no
// upper neighbour, so values are rounded down. Non-finite values decode to an infinity.
size_t natural_bytes(int64_t count);
void natural_encode(void* encoded, const float* x, int64_t count, const PhiloxKey& key, const device::Stream& stream);
void natural_decode(float* y, WriteMode into, const void* encoded, int64_t count, const device::Stream& stream);

// `levels` has at least two ascending levels. Each value is rounded to one of its two neighbouring levels. A value
// beyond the first or last level is rounded to that level. An encoded value is the index of a level, in
// level_bits(num_levels) bits. levels_encode returns false if x contains a NaN.
int level_bits(int64_t num_levels);
bool levels_encode(void* encoded, const float* x, int64_t count, std::span<const float> levels, const PhiloxKey& key);
// Returns false if an encoded index is not below the number of levels.
bool levels_decode(float* y, WriteMode into, const void* encoded, int64_t count, std::span<const float> levels);

// Reference loops for tests: they encode or decode `count` values with given random numbers u.
namespace ref {
void stochastic_block_encode(int8_t* codes, const float* x, const float* u, int64_t count, float scale, float top);
void qsgd_encode_values(uint16_t* codes, const float* x, const float* u, int64_t count, float steps_per_unit,
                        int64_t levels, int sign_bit);
uint16_t qsgd_decode_values(float* y, WriteMode into, const uint16_t* codes, int64_t count, float unit, int sign_bit);
void natural_encode_values(uint8_t* exponents, uint8_t* signs, const float* x, const float* u, int64_t count);
void natural_decode_values(float* y, WriteMode into, const uint8_t* exponents, const uint8_t* signs, int64_t count);
}  // namespace ref

}  // namespace esp::kernel
