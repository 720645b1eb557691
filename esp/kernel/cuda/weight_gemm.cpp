// Weight gradients: a GEMM, and a separate kernel for the bias gradient. cuBLASLt can fuse the bias gradient (BGRADA),
// but this was never faster in measurements on an H200 with the shapes of GPT-2.
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
