// GEMM epilogue as a separate kernel, for cases without a cuBLASLt epilogue: bias, activation, its derivative, beta·C.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/gemm.h"

namespace esp::kernel::cuda {

// Applies the epilogue to a GEMM result p = `product` (zeros if null). Rows of p have n elements and stride ld; rows of
// C have stride ldc.
//   forward   value = p + beta·C + bias, stored in pre_activation if not null; C = act(value)
//   backward  C = p ∘ act'(pre_activation_in) + beta·C
void apply_gemm_epilogue(void* c, const void* product, int64_t ld, int64_t m, int64_t n, const GemmOptions& options,
                         double beta, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
