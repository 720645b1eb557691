#include "esp/sync/quantised/encoding.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {

void check(const Encoding& encoding) {
  if (encoding.bits != 0 && encoding.bits != 4 && encoding.bits != 8)
    throw UsageError(fmt::format("quantisation: got {} bits; expected 8, 4 or 0 (unchanged).", encoding.bits));
  if (encoding.block < 1)
    throw UsageError(fmt::format("quantisation block: got {} values; expected at least 1.", encoding.block));
}

size_t encoded_bytes(size_t count, DType wire, const Encoding& encoding) {
  return encoding.plain() ? count * size_of(wire)
                          : kernel::quantized_bytes(static_cast<int64_t>(count), encoding.code());
}

void encode(void* encoded, DType wire, const void* x, DType dtype, size_t count, const Encoding& encoding,
            const device::Stream& stream) {
  const auto n = static_cast<int64_t>(count);
  encoding.plain() ? kernel::cast(encoded, wire, x, dtype, n, stream)
                   : kernel::quantize(encoded, x, n, dtype, encoding.code(), stream);
}

void decode(void* y, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
            const device::Stream& stream) {
  const auto n = static_cast<int64_t>(count);
  encoding.plain() ? kernel::cast(y, dtype, encoded, wire, n, stream)
                   : kernel::dequantize(y, encoded, n, dtype, encoding.code(), stream);
}

void decode_add(void* sums, DType dtype, const void* encoded, DType wire, size_t count, const Encoding& encoding,
                const tensor::Context& context) {
  const auto n = static_cast<int64_t>(count);
  if (!encoding.plain()) {
    ESP_CHECK(dtype == DType::f32, "decode_add: got sums of type {}; expected f32", name_of(dtype));
    return kernel::dequantize_add(static_cast<float*>(sums), encoded, n, encoding.code(), context.stream);
  }
  if (wire == dtype) return kernel::add_to(sums, encoded, n, dtype, context.stream);
  if (count == 0) return;
  const tensor::Tensor wide = tensor::empty(context, {n}, dtype, device::MemoryCategory::buffer);
  kernel::cast(wide.data(), dtype, encoded, wire, n, context.stream);
  kernel::add_to(sums, wide.data(), n, dtype, context.stream);
}

tensor::Tensor staging(const tensor::Context& context, size_t bytes) {
  return tensor::empty(context, {static_cast<int64_t>(bytes)}, DType::u8, device::MemoryCategory::buffer);
}

}  // namespace esp::sync
