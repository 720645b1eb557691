// The two-layer MLP with its inner width sharded over the tensor axis (column parallel, then row parallel), as one
// node.
#pragma once

#include "esp/nn/parallel_ops.h"
#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

// act(x·W1 + b1)·W2, or the gated MLP. Reads a stream and returns a stream, summed over the axis; the caller adds
// p.b2. `keep` as in autograd::mlp.
autograd::Variable mlp(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                       const nn::MlpWeights& p, bool keep, int64_t batch);

}  // namespace esp::parallel
