// A bias on its own, where it cannot ride on the product it belongs to.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// x [.., n] + b [n], in place: the result shares x's memory, and whoever made x must not need its value for backward.
Variable add_bias(Tape& tape, const Variable& x, Weight& b);

}  // namespace esp::autograd
