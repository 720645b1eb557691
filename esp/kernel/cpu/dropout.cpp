#include "esp/kernel/dropout.h"

#include "esp/kernel/floating.h"

namespace esp::kernel {

void dropout(void* y, const void* x, const void* residual, const DropoutShape& shape, DropoutKey key, DType dtype,
             const device::Stream& stream) {
  device::parallel_for(stream, shape.rows, 1, [&](int64_t begin, int64_t end) {
    DropoutShape piece = shape;
    piece.rows = end - begin;
    piece.first_row += begin;
    const int64_t i = begin * shape.cols;
    ref::dropout(at(y, i, dtype), at(x, i, dtype), at(residual, i, dtype), piece, key, dtype);
  });
}

}  // namespace esp::kernel
