// Dropout with a stored mask of one byte per element. The function `dropout` (pointwise.h) recomputes the mask instead.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// y = x·scale where `mask` is 1, else 0. The mask is u8 and has as many elements as x.
Variable apply_mask(Tape& tape, const Variable& x, tensor::Tensor mask, double scale);

}  // namespace esp::autograd
