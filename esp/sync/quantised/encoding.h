// Encoding of values in a quantised collective: blockwise integers (kernel/quantize.h), or unchanged. Unchanged values
// switch the quantisation of a collective off; tests use them to check positions without rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "esp/kernel/quantize.h"
#include "esp/tensor/tensor.h"

namespace esp::sync {

struct Encoding {
  int bits = 8;  // bits per value: 8 or 4; 0: values are sent unchanged
  int64_t block = 2048;
  bool plain() const { return bits == 0; }
  kernel::BlockFormat code() const { return {bits, block}; }
};

// Throws UsageError if the encoding is invalid.
void check(const Encoding& encoding);

// Bytes of `count` encoded values. With bits = 0 values are sent in the type `wire`.
size_t encoded_bytes(size_t count, DType wire, const Encoding& encoding);
// With bits = 0 the address of `encoded` must be aligned for `wire`.
void encode(void* encoded, DType wire, const void* x, DType dtype, size_t count, const Encoding& encoding,
            const device::Stream& stream);
void decode(void* y, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
            const device::Stream& stream);
// Decodes and adds: sums += the decoded values. Sums of quantised values are in fp32.
void decode_add(void* sums, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
                const tensor::Context& context);

// Allocates a communication buffer, charged as memory category buffer.
tensor::Tensor staging(const tensor::Context& context, size_t bytes);

}  // namespace esp::sync
