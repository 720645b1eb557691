// Separate GEMM epilogue: bias, activation, its derivative, or beta·C.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/gemm.h"

namespace esp::kernel::cuda {

// With p = product (rows of n, or of ldc where it lies in C; null: zeros), rows `ld` apart:
//   forward   value = p + beta·C + bias, kept in pre_activation where given; C = act(value)
//   backward  C = p ∘ act'(pre_activation_in) + beta·C
void finish_gemm(void* c, const void* product, int64_t ld, int64_t m, int64_t n, const GemmOptions& options,
                 double beta, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
