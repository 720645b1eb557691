// Copies of a run of columns of many rows, between strides and between types.
#pragma once

#include <cstdint>

#include "esp/tensor/tensor.h"

namespace esp::parallel {

// Row r begins `begin + r·stride` elements into the tensor.
struct Rows {
  const tensor::Tensor& tensor;
  int64_t begin, stride;
};

// `width` elements of each of `count` rows; overwrites.
void copy_rows(const Rows& to, const Rows& from, int64_t count, int64_t width, const device::Stream& stream);

}  // namespace esp::parallel
