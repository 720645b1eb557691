// Blockwise symmetric quantisation: every `block` values share an fp32 scale; each value becomes a small integer. The
// wire format of quantised collectives.
//
// With top = 127 (8 bits) or 7 (4 bits): scale = max|x| / top and code = x / scale rounded half to even, both in fp32,
// so |x − code·scale| ≤ scale/2 up to the last place of fp32 (a scale below 2^-126 is itself coarse). A block of zeros,
// or of values too small for a scale, has scale 0 and decodes to zeros. A block with an infinity or a NaN has scale NaN
// and decodes to NaN throughout, so an overflow stays visible. f64 goes through fp32.
//
// An encoded run is the scales, one per block, then the codes of all blocks: one byte each, or two per byte with the
// first in the low half; every block starts at a byte. The last block may be short. No alignment is needed, so encoded
// runs can be concatenated. Outputs are overwritten unless stated. Bit-identical on every instruction set and for any
// number of threads.
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
// sums += decoded values; one product and one addition, each rounded.
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
