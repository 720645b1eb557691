// Vocabulary-parallel cross entropy: the rows of the output matrix are sharded over the tensor axis.
#pragma once

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/nn/parameter.h"
#include "esp/parallel/tp/tp_mappings.h"

namespace esp::parallel {

// Like autograd::linear_cross_entropy: processes one block of rows at a time and computes the gradients in forward. The
// ranks exchange 3 numbers per row instead of the logits. `x` is the stream; `w` and `b` are sharded by rows. All ranks
// return equal losses.
autograd::Loss vocab_parallel_cross_entropy(autograd::Tape& tape, const TensorAxis& axis, const autograd::Variable& x,
                                            const nn::Parameter& w, const nn::Parameter* b,
                                            const tensor::Tensor& targets, double scale, int64_t batch);

// All-gather of logits: [.., local classes] → [.., classes].
tensor::Tensor gather_vocab_logits(const tensor::Context& context, TpCommunicator& tp_comm, const tensor::Tensor& own,
                                   int64_t classes);

}  // namespace esp::parallel
