// A GEMM and a separate pass: the library's fused bias gradient (BGRADA) was timed on an H200 for the shapes of GPT-2
// and never won.
#include "esp/kernel/cuda/weight_gemm.h"

#include "esp/kernel/cuda/column_sums.h"
#include "esp/kernel/gemm.h"

namespace esp::kernel::cuda {

void weight_gemm(const WeightGradients& to, const void* x, const void* dy, int64_t in, int64_t out, int64_t rows,
                 DType dtype, const device::Stream& stream) {
  GemmOptions options;
  options.transpose_a = true;
  options.beta = to.add_to_dw ? 1 : 0;
  options.ragged = to.ragged;
  if (to.dw) cuda::gemm(to.dw, x, dy, in, out, rows, options, dtype, stream);
  if (!to.db) return;
  if (to.dy_sums)
    add_chunk_sums(to.db, to.add_to_db, to.dy_sums, 1, out, dtype, stream);
  else
    column_sums_to(to.db, to.add_to_db, dy, rows, out, dtype, stream);
}

}  // namespace esp::kernel::cuda
