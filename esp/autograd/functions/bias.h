// Bias addition as a separate function, where it cannot be a GEMM epilogue.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// x [.., n] + b [n], in place: the result shares x's memory, so the producer of x must not need its value for backward.
Variable add_bias(Tape& tape, const Variable& x, Weight& b);

}  // namespace esp::autograd
