// The two-layer perceptron with its inner width divided over the tensor axis: one node, as on one device.
#pragma once

#include "esp/nn/regions.h"
#include "esp/parallel/tp/moves.h"

namespace esp::parallel {

// act(x·W1 + b1)·W2 or gated, stream → stream, summed over the axis; p.b2 is left to the caller. `keep` as in
// autograd::perceptron.
autograd::Variable perceptron(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                              const nn::PerceptronWeights& p, bool keep, int64_t batch);

}  // namespace esp::parallel
