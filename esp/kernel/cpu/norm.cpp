#include "esp/kernel/norm.h"

#include "esp/kernel/floating.h"

namespace esp::kernel {

void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype, const device::Stream& stream) {
  const DType stat = accumulator_of(dtype);
  device::parallel_for(stream, shape.rows, 1, [&](int64_t begin, int64_t end) {
    NormShape piece = shape;
    piece.rows = end - begin;
    const int64_t i = begin * shape.dim;
    ref::norm_forward(at(y, i, dtype), at(mean, begin, stat), at(rstd, begin, stat), at(sum, i, dtype), at(x, i, dtype),
                      at(residual, i, dtype), gamma, beta, piece, dtype);
  });
}

void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype, const device::Stream& stream) {
  const DType stat = accumulator_of(dtype);
  device::parallel_for(stream, shape.rows, 1, [&](int64_t begin, int64_t end) {
    NormShape piece = shape;
    piece.rows = end - begin;
    const int64_t i = begin * shape.dim;
    ref::norm_backward_input(at(dx, i, dtype), at(dy, i, dtype), at(x, i, dtype), at(mean, begin, stat),
                             at(rstd, begin, stat), gamma, piece, accumulate, dtype);
  });
}

void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype, const device::Stream&) {
  ref::norm_backward_weight(dgamma, dbeta, dy, x, mean, rstd, shape, dtype);
}

}  // namespace esp::kernel
