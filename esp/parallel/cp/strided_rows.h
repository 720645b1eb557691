// Strided copies of a column range of many rows, with type conversion.
#pragma once

#include <cstdint>

#include "esp/tensor/tensor.h"

namespace esp::parallel {

// Row r starts `begin + r·stride` elements into the tensor.
struct StridedRows {
  const tensor::Tensor& tensor;
  int64_t begin, stride;
};

// Copies `width` elements of each of `count` rows; overwrites the destination.
void copy_rows(const StridedRows& to, const StridedRows& from, int64_t count, int64_t width,
               const device::Stream& stream);

}  // namespace esp::parallel
