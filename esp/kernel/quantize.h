// Blockwise symmetric quantisation: every `block` values share an fp32 scale, and each value becomes a small integer.
// This is the wire format of quantised collectives.
//
// With top = 127 (8 bits) or 7 (4 bits): scale = max|x| / top, and the encoded value is q = x / scale rounded half to
// even, both in fp32. So |x − q·scale| ≤ scale/2, up to the last place of fp32 (a scale below 2^-126 is subnormal and
// less exact). A block of zeros, or of values too small for a scale, has scale 0 and decodes to zeros. A block with an
// infinity or a NaN has scale NaN, and all its values decode to NaN, so overflow stays visible. f64 is converted to
// fp32 first.
//
// Format: the scales, one per block, then the encoded values of all blocks. An encoded value is one byte. With 4 bits,
// two values share a byte, the first in the low half. Every block starts at a byte. The last block may be short. No
// alignment is needed, so encoded buffers can be concatenated. Outputs are overwritten unless a comment says otherwise.
// Bit-identical on every instruction set and for any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct BlockFormat {
  int bits = 8;  // 8 or 4
  int64_t block = 2048;
};

// Size for n = count values: 4·⌈n/block⌉ bytes for the scales, plus n bytes for the encoded values (8 bits) or ⌈values
// of the block / 2⌉ bytes per block (4 bits).
size_t quantized_bytes(int64_t count, const BlockFormat& format);

void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockFormat& format,
              const device::Stream& stream);
void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockFormat& format,
                const device::Stream& stream);
// sums += decoded values. The multiplication by the scale and the addition are rounded separately.
void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockFormat& format,
                    const device::Stream& stream);

namespace ref {
void quantize(void* encoded, const void* x, int64_t count, DType dtype, const BlockFormat& format);
void dequantize(void* y, const void* encoded, int64_t count, DType dtype, const BlockFormat& format);
void dequantize_add(float* sums, const void* encoded, int64_t count, const BlockFormat& format);
}  // namespace ref

namespace cuda {
decltype(kernel::quantize) quantize;
decltype(kernel::dequantize) dequantize;
decltype(kernel::dequantize_add) dequantize_add;
}  // namespace cuda

}  // namespace esp::kernel
