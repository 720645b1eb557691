// Dropout with a stored mask, a byte per element; dropout (pointwise.h) recomputes it instead.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// x·scale where `mask` (u8, of x's count) is 1, else 0.
Variable apply_mask(Tape& tape, const Variable& x, tensor::Tensor mask, double scale);

}  // namespace esp::autograd
