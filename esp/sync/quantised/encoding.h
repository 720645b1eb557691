// Encoding of values in a quantised collective: blockwise integers (kernel/quantize.h), or unchanged, so that each use
// can be switched off and tests can separate placement from rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/kernel/quantize.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

struct Encoding {
  int bits = 8;  // 8 or 4; 0: unchanged
  int64_t block = 2048;
  bool plain() const { return bits == 0; }
  kernel::BlockCode code() const { return {bits, block}; }
};

// UsageError for an invalid encoding.
void check(const Encoding& encoding);

// `wire` is the type of values sent unchanged.
size_t encoded_bytes(size_t count, DType wire, const Encoding& encoding);
// Unchanged values are at addresses aligned for `wire`.
void encode(void* encoded, DType wire, const void* x, DType dtype, size_t count, const Encoding& encoding,
            const device::Stream& stream);
void decode(void* y, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
            const device::Stream& stream);
// sums += the decoded values. The sums of quantised values are fp32.
void decode_add(void* sums, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
                const tensor::Context& context);

// Communication buffer, of category buffer.
tensor::Tensor staging(const tensor::Context& context, size_t bytes);

}  // namespace esp::sync
