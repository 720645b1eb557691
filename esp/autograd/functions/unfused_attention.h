// Unfused self attention: QKᵀ, softmax, dropout and the product with V as separate kernels, with the intermediate
// matrices stored for backward. The same function as self_attention (attention.h), rounded more often.
//
// Stored beside qkv and the output, B·heads·T² elements each: the probabilities, a byte mask, and the probabilities
// after dropout; without dropout the probabilities only.
#pragma once

#include "esp/autograd/functions/attention.h"

namespace esp::autograd {

// qkv [B, T, (heads + 2·kv_heads)·head_dim], laid out [q | k | v] → [B, T, heads·head_dim].
Variable unfused_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options);

}  // namespace esp::autograd
