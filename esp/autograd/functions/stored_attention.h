// Self attention as the textbook computes it: QKᵀ, softmax, dropout and the product with V one after the other, with
// the matrices in between kept for backward. The same function as self_attention (attention.h), rounded more often.
//
// Kept beside qkv and the output, of B·heads·T² elements each: the probabilities, a byte mask, and the probabilities
// that dropout left; without dropout the probabilities alone.
#pragma once

#include "esp/autograd/functions/attention.h"

namespace esp::autograd {

// qkv [B, T, (heads + 2·kv_heads)·head_dim], laid out [q | k | v] → [B, T, heads·head_dim].
Variable stored_attention(Tape& tape, const Variable& qkv, const AttentionOptions& options);

}  // namespace esp::autograd
