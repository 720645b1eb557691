// All gradients of a norm in one pass over its gradient and input. No CUDA types here.
#pragma once

#include "esp/kernel/norm.h"

namespace esp::kernel::cuda {

struct NormGradients {
  void* dx = nullptr;
  void *dgamma = nullptr, *dbeta = nullptr;                             // dbeta may be null
  bool add_to_dx = false, add_to_dgamma = false, add_to_dbeta = false;  // else overwritten
  void* dx_sums = nullptr;                                              // optional: f32 [dim], the column sums of dx
};
// Like norm_backward_input and norm_backward_weight; returns false, doing nothing, for unsupported rows.
bool norm_backward(const NormGradients& to, const void* dy, const void* x, const void* mean, const void* rstd,
                   const void* gamma, const NormShape& shape, DType dtype, const device::Stream& stream);

}  // namespace esp::kernel::cuda
