// Token and position embeddings.
#pragma once

#include "esp/autograd/tape.h"

namespace esp::autograd {

// ids i32 [B, T] → [B, T, dim]: table[ids] (+ positions[first_position + t] if given). `ids` must stay valid until
// backward.
Variable embedding(Tape& tape, const tensor::Tensor& ids, Weight& table, Weight* positions, int64_t first_position = 0);

}  // namespace esp::autograd
