// Elementwise differences and products of arrays: y = a − b, y −= x, y *= x. Supports f32 and f64. y may equal an
// operand.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/write_mode.h"

namespace esp::kernel {

void subtract(void* y, const void* a, const void* b, int64_t count, DType dtype, const device::Stream& stream);
// Writes x to y as selected by `into`: y = x, y += x or y −= x.
void write_values(void* y, WriteMode into, const void* x, int64_t count, DType dtype, const device::Stream& stream);
void multiply(void* y, const void* x, int64_t count, DType dtype, const device::Stream& stream);  // y *= x

namespace cuda {
decltype(kernel::subtract) subtract;
decltype(kernel::write_values) write_values;
decltype(kernel::multiply) multiply;
}  // namespace cuda

}  // namespace esp::kernel
