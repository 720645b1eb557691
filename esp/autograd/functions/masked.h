// Dropout that keeps its mask, a byte per element, where dropout (pointwise.h) draws it again.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// x·scale where `mask` (u8, of x's count) is 1, else 0.
Variable masked(Tape& tape, const Variable& x, tensor::Tensor mask, double scale);

}  // namespace esp::autograd
