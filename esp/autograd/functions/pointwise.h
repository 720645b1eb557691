// Functions without weights: addition, activations, dropout, rotary position embedding (RoPE), token selection.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/dropout.h"
#include "esp/kernel/embedding.h"

namespace esp::autograd {

Variable add(Tape& tape, const Variable& a, const Variable& b);
Variable activation(Tape& tape, const Variable& x, kernel::Activation kind);
Variable swiglu(Tape& tape, const Variable& x);  // [.., 2·width] → [.., width]

// Returns x if rate is 0. `first_row` is the global index of x's first row.
Variable dropout(Tape& tape, const Variable& x, double rate, kernel::DropoutKey key, int64_t first_row = 0);

// Rotates the first `heads` heads of every row in place. The result shares x's memory, so the function that computed x
// must not need its output in backward (a linear layer does not). `first_position` is the position of the first token.
Variable rotary(Tape& tape, const Variable& x, int64_t heads, int64_t head_dim, int64_t first_position,
                const kernel::RotaryAngles& angles);
// Like `rotary`, but only for tokens [begin, end) of every sequence. Token `begin` has position `first_position`.
Variable rotary_range(Tape& tape, const Variable& x, int64_t heads, int64_t head_dim, int64_t begin, int64_t end,
                      int64_t first_position, const kernel::RotaryAngles& angles);

Variable select_token(Tape& tape, const Variable& x, int64_t token);  // [B, T, C] → [B, C]

}  // namespace esp::autograd
