// GEMM: C = alpha·op(A)·op(B) + beta·C, with fused epilogues.
//
// Row-major. op(A) is M×K, op(B) is K×N, C is M×N. Sums are in fp32 (fp64 for f64) and rounded to dtype once. The
// summation order of an element depends on K alone, not on M, N, the layout or the number of threads, so a slice of
// rows or columns is bit-identical to the whole. C may not overlap A or B. With beta 0, C is not read. One call at a
// time per stream; packing scratch belongs to the calling thread, grows to the largest call and is kept.
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
  // The number of rows (M, or K if A is stored K×M) varies between calls: on a GPU no algorithm is tuned for it.
  bool ragged = false;
  // Epilogue, forward: C = act(alpha·product + beta·C + bias). `pre_activation`, if given, stores the argument of act
  // (M×N, row stride ldc).
  const void* bias = nullptr;  // N
  Activation activation = Activation::none;
  void* pre_activation = nullptr;
  // Epilogue, backward: C = alpha·product ∘ act'(pre_activation_in) + beta·C, the gradient before the activation (M×N,
  // row stride ldc). No bias.
  const void* pre_activation_in = nullptr;
};

// Strides: op(A)[i][p] is at i·a_row + p·a_col, op(B)[p][j] at p·b_row + j·b_col.
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
