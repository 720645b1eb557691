// How values travel in a quantised collective: as blockwise whole numbers (kernel/quantize.h), or as they are, so that
// each use can be switched off and tests can tell placement from rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/kernel/quantize.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

struct Encoding {
  int bits = 8;  // 8 or 4; 0: as they are
  int64_t block = 2048;
  bool plain() const { return bits == 0; }
  kernel::BlockCode code() const { return {bits, block}; }
};

// UsageError for what no encoding has.
void check(const Encoding& encoding);

// `wire` is what values travel as where the encoding is plain.
size_t encoded_bytes(size_t count, DType wire, const Encoding& encoding);
// Plain ones are at addresses aligned for `wire`.
void encode(void* encoded, DType wire, const void* x, DType dtype, size_t count, const Encoding& encoding,
            const device::Stream& stream);
void decode(void* y, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
            const device::Stream& stream);
// sums += what was encoded. The sums of quantised values are fp32.
void decode_add(void* sums, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
                const tensor::Context& context);

// Bytes on their way, of category buffer.
tensor::Tensor staging(const tensor::Context& context, size_t bytes);

}  // namespace esp::sync
