// Unfused self attention: QKᵀ, softmax, dropout and the GEMM with V run as separate kernels, and the intermediate
// matrices are stored for backward. Computes the same function as self_attention (attention.h), but rounds more often.
//
// Besides qkv and the output, forward stores three matrices with B·heads·T² elements each: the probabilities, a byte
// mask, and the probabilities after dropout. Without dropout it stores only the probabilities.
#pragma once

#include "esp/autograd/functions/attention.h"

namespace esp::autograd {

// qkv [B, T, (heads + 2·kv_heads)·head_dim], laid out [q | k | v] → [B, T, heads·head_dim].
Variable unfused_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options);

}  // namespace esp::autograd
