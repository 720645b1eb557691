// Linear maps whose matrix is divided over the tensor axis (Shoeybi et al. 2019).
#pragma once

#include "esp/parallel/tp/moves.h"

namespace esp::parallel {

// x·W + b, the outputs divided: the stream of `batch` sequences → [B, T, own columns].
autograd::Variable linear_by_columns(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                                     autograd::Weight& w, autograd::Weight* b, int64_t batch);
// h·W, the inputs divided: [B, T, own rows of W] → the stream, summed over the axis.
autograd::Variable linear_by_rows(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& h,
                                  autograd::Weight& w);

}  // namespace esp::parallel
