// LayerNorm and RMSNorm over the last dimension, optionally fused with the residual addition before them.
//
// Statistics (mean and rstd = 1/√(variance + eps), one of each per row) are in the accumulation type: float, or double
// for f64. forward overwrites its outputs. If `residual` is given, x + residual is written to `sum`, and `sum` is
// normalised; `sum` may equal x or residual. backward_input writes dx, or adds to dx if `accumulate` is set.
// backward_weight always adds to dgamma and dbeta, rows in order, and can run later. RMSNorm has no mean and no beta:
// pass null for both.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel {

enum class NormKind : uint8_t { layer, rms };

struct NormShape {
  NormKind kind = NormKind::layer;
  int64_t rows = 0, dim = 0;
  double eps = 1e-5;
};

void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype, const device::Stream& stream);
// `x` is the tensor that was normalised: `sum` if forward had a residual, else x.
void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype, const device::Stream& stream);
void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype, const device::Stream& stream);

namespace ref {
void norm_forward(void* y, void* mean, void* rstd, void* sum, const void* x, const void* residual, const void* gamma,
                  const void* beta, const NormShape& shape, DType dtype);
void norm_backward_input(void* dx, const void* dy, const void* x, const void* mean, const void* rstd, const void* gamma,
                         const NormShape& shape, bool accumulate, DType dtype);
void norm_backward_weight(void* dgamma, void* dbeta, const void* dy, const void* x, const void* mean, const void* rstd,
                          const NormShape& shape, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::norm_forward) norm_forward;
decltype(kernel::norm_backward_input) norm_backward_input;
decltype(kernel::norm_backward_weight) norm_backward_weight;
}  // namespace cuda

}  // namespace esp::kernel
