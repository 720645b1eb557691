// Column-parallel and row-parallel linear layers: the weight matrix is sharded over the tensor axis (Shoeybi et al.
// 2019).
#pragma once

#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

// Column parallel: x·W + b, W sharded by outputs. x is a stream of `batch` sequences; returns [B, T, local columns].
autograd::Variable column_parallel_linear(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                                          autograd::Weight& w, autograd::Weight* b, int64_t batch);
// Row parallel: h·W, W sharded by inputs. h is [B, T, local rows of W]; returns the stream, summed over the axis.
autograd::Variable row_parallel_linear(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& h,
                                       autograd::Weight& w);

}  // namespace esp::parallel
