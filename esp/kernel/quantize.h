// Blockwise symmetric quantisation: every `block` values share one fp32 scale, every value is a small whole number of
// it. What crosses the network for a quantised collective.
//
// With top = 127 (8 bits) or 7 (4 bits): scale = max|x| / top and code = x / scale rounded half to even, both in fp32,
// so |x − code·scale| ≤ scale/2 to the last place of fp32 (a scale below 2^-126 is itself coarse). A block of zeros, or
// of values too small for a scale, has scale 0 and comes back as zeros. A block that holds an infinity or a NaN has
// scale NaN and comes back as NaN throughout: an overflow stays visible. f64 goes through fp32.
//
// An encoded run is the scales, one per block, then the codes block after block: a byte each, or two to a byte, the
// first in the low half, every block beginning a byte. The last block may be short. No alignment is needed, so encoded
// runs can follow each other without gaps. Outputs are overwritten unless said. The same bits on every instruction set
// and for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct BlockCode {
  int bits = 8;  // or 4
  int64_t block = 2048;
};

// 4·⌈n/block⌉ for the scales, and n, or ⌈n/2⌉ summed over blocks, for the codes.
size_t quantized_bytes(int64_t count, const BlockCode& code);

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockCode& code,
              const device::Stream& stream);
void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockCode& code,
                const device::Stream& stream);
// sums += what was encoded; one product and one addition, each rounded.
void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockCode& code,
                    const device::Stream& stream);

namespace ref {
void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockCode& code);
void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockCode& code);
void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockCode& code);
}  // namespace ref

namespace cuda {
decltype(kernel::quantize) quantize;
decltype(kernel::dequantize) dequantize;
decltype(kernel::dequantize_add) dequantize_add;
}  // namespace cuda

}  // namespace esp::kernel
