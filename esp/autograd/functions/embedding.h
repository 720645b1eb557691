// Token and position look-ups.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// ids i32 [B, T] → [B, T, dim]: table[ids] (+ positions[first_position + t] where given). ids must outlive the tape's
// use of them.
Variable embedding(Tape& tape, const tensor::Tensor& ids, Weight& table, Weight* positions, int64_t first_position = 0);

}  // namespace esp::autograd
