// Weight gradients of a linear layer, dW [in, out] = xᵀ·dy and db = Σ_rows dy. No CUDA types here.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"

namespace esp::kernel::cuda {

// Outputs that are null are not computed.
struct WeightGradients {
  void *dw = nullptr, *db = nullptr;
  bool add_to_dw = false, add_to_db = false;  // true: add to the gradient; false: overwrite it
  const void* dy_sums = nullptr;              // Σ_rows dy as f32 (f64 for f64) [out], if already computed; else null
  bool ragged = false;                        // the number of rows varies, as in GemmOptions
};
void weight_gemm(const WeightGradients& to, const void* x, const void* dy, int64_t in, int64_t out, int64_t rows,
                 DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
