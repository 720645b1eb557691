// Matrix products: C = alpha·op(A)·op(B) + beta·C, with what commonly follows done while the tile is in cache.
//
// Row-major. op(A) is M×K, op(B) is K×N, C is M×N. Sums are in fp32 (fp64 for f64) and rounded to dtype once. The
// order in which an element's products are added depends on K alone, not on M, N or the number of threads, so a slice
// of the rows or columns has the same bits as the whole. C may not overlap A or B.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/activation.h"

namespace esp::kernel {

struct GemmOptions {
  bool transpose_a = false;           // A is stored K×M
  bool transpose_b = false;           // B is stored N×K
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements between rows; 0: packed
  double alpha = 1, beta = 0;         // beta 1 accumulates into C
  // Epilogue, forward: C = act(product + bias). `pre_activation`, where given, keeps product + bias (M×N, like C).
  const void* bias = nullptr;  // N
  Activation activation = Activation::none;
  void* pre_activation = nullptr;
  // Epilogue, backward: C = product ∘ act'(pre_activation_in), the gradient before the activation (M×N, like C).
  const void* pre_activation_in = nullptr;
};

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype, const device::Stream& stream);

namespace ref {
void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype);
}

}  // namespace esp::kernel
