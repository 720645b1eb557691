// Weighted sum of arrays: y[i] = w[0]·x[0][i] + w[1]·x[1][i] + …, added in exactly this order.
//
// Overwrites y. y may equal an x exactly, but may not overlap one partly. Weights are rounded to the accumulation type
// (fp32; fp64 for f64). 16-bit results are rounded once at the end. At least one term is required.
#pragma once

#include <cstdint>
#include <span>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

struct WeightedTerm {
  const void* x = nullptr;
  double weight = 1;
};

void weighted_sum(void* y, std::span<const WeightedTerm> terms, int64_t count, DType dtype,
                  const device::Stream& stream);

namespace ref {
void weighted_sum(void* y, std::span<const WeightedTerm> terms, int64_t count, DType dtype);
}

namespace cuda {
decltype(kernel::weighted_sum) weighted_sum;
}  // namespace cuda

}  // namespace esp::kernel
