// Cross entropy over a vocabulary whose rows are divided over the tensor axis.
#pragma once

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/nn/parameter.h"
#include "esp/parallel/tp/moves.h"

namespace esp::parallel {

// As autograd::linear_cross_entropy, a block of rows at a time with gradients made in forward; of the rows' logits, 3
// numbers each are shared. `x` is the stream; `w` and `b` are cut by rows. Everybody has the same losses.
autograd::Loss vocabulary_loss(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                               const nn::Parameter& w, const nn::Parameter* b, const tensor::Tensor& targets,
                               double scale, int64_t batch);

// The logits of all classes from everybody's: [.., own classes] → [.., classes].
tensor::Tensor all_classes(const tensor::Context& context, Line& line, const tensor::Tensor& own, int64_t classes);

}  // namespace esp::parallel
