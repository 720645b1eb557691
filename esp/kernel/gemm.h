// GEMM: C = alpha·op(A)·op(B) + beta·C, with fused epilogues.
//
// All matrices are row-major. op(A) is M×K, op(B) is K×N, C is M×N. Sums are in fp32 (fp64 for f64) and rounded to
// dtype once. The summation order of an element depends only on K, not on M, N, the layout or the number of threads. A
// slice of rows or columns is therefore bit-identical to the same slice of the whole GEMM. C may not overlap A or B.
// With beta 0, C is not read.
//
// Only one call per stream may be active at a time. The scratch memory for packing belongs to the calling thread; it
// grows to the largest call and is reused.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/activation.h"

namespace esp::kernel {

struct GemmOptions {
  bool transpose_a = false;           // A is stored K×M
  bool transpose_b = false;           // B is stored N×K
  int64_t lda = 0, ldb = 0, ldc = 0;  // row strides in elements; 0 means rows without gaps
  double alpha = 1, beta = 0;         // beta = 1 accumulates into C
  // True if the number of rows (M, or K if A is stored K×M) varies between calls. Then no GPU algorithm is tuned for
  // this GEMM.
  bool ragged = false;
  // Forward epilogue: C = act(alpha·op(A)·op(B) + beta·C + bias). If `pre_activation` is given, the argument of act is
  // stored there (M×N, row stride ldc).
  const void* bias = nullptr;  // N elements
  Activation activation = Activation::none;
  void* pre_activation = nullptr;
  // Backward epilogue: C = alpha·op(A)·op(B) ∘ act'(pre_activation_in) + beta·C. C is then the gradient of the argument
  // of the activation. pre_activation_in is M×N with row stride ldc. A bias is not allowed.
  const void* pre_activation_in = nullptr;
};

// Strides of the operands, in elements: op(A)[i][p] is at i·a_row + p·a_col, and op(B)[p][j] is at p·b_row + j·b_col.
struct GemmStrides {
  int64_t a_row, a_col, b_row, b_col, c_row;
};
inline GemmStrides strides_of(int64_t m, int64_t n, int64_t k, const GemmOptions& o) {
  const int64_t lda = o.lda ? o.lda : o.transpose_a ? m : k, ldb = o.ldb ? o.ldb : o.transpose_b ? k : n;
  return {o.transpose_a ? 1 : lda, o.transpose_a ? lda : 1, o.transpose_b ? 1 : ldb, o.transpose_b ? ldb : 1,
          o.ldc ? o.ldc : n};
}

void check_gemm(const void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k,
                const GemmOptions& options, DType dtype);

void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype, const device::Stream& stream);

namespace ref {
void gemm(void* c, const void* a, const void* b, int64_t m, int64_t n, int64_t k, const GemmOptions& options,
          DType dtype);
}

namespace cuda {
decltype(kernel::gemm) gemm;
}  // namespace cuda

}  // namespace esp::kernel
