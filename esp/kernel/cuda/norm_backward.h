// Fused backward of LayerNorm and RMSNorm: all gradients in one pass over dy and x. No CUDA types here.
#pragma once

#include "esp/kernel/norm.h"

namespace esp::kernel::cuda {

struct NormGradients {
  void* dx = nullptr;
  void *dgamma = nullptr, *dbeta = nullptr;  // dbeta may be null
  // true: add to the gradient; false: overwrite it
  bool add_to_dx = false, add_to_dgamma = false, add_to_dbeta = false;
  void* dx_sums = nullptr;  // f32 [dim], receives the column sums of dx; may be null
};
// Computes what norm_backward_input and norm_backward_weight compute. Returns false without writing if the row length
// or the GPU is not supported.
bool norm_backward(const NormGradients& to, const void* dy, const void* x, const void* mean, const void* rstd,
                   const void* gamma, const NormShape& shape, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
