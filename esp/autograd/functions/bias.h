// Bias addition as a separate function, for cases where a GEMM epilogue cannot add it.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// y = x [.., n] + b [n], in place: y shares x's memory. The producer of x must not need its output in backward.
Variable add_bias(Tape& tape, const Variable& x, Weight& b);

}  // namespace esp::autograd
