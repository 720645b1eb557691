// Ring attention (Liu et al. 2023): every rank keeps its queries, and the keys and values go around the ring.
//
// Step j of c: the queries of rank r meet the keys of rank r − j while these are already on their way to r + 1; what
// the blocks give is merged by their log-sum-exps in the accumulation type (kernel::attention_forward_block). Backward
// goes around again with the sums dK, dV, in the accumulation type, travelling behind their block; they are home after
// c hops. Bytes a rank sends, with q = 2·B·T_local·kv_heads·head_dim elements: forward (c−1)·q, backward (c−1)·q and
// c·q of sums. Keys lie in two buffers, sums in three: memory is that of T/c tokens.
//
// The result is that of self attention over the whole sequence but for rounding, and the same for any number of
// threads. Dropout is numbered by positions in the whole sequence, key_lengths count its tokens.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/parallel/cp/group.h"

namespace esp::parallel {

// qkv [B, T_local, (heads + 2·kv_heads)·head_dim] of the tokens group.tokens(rank) → [B, T_local, heads·head_dim].
autograd::Variable ring_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                  const autograd::AttentionOptions& options, const ContextGroup& group);

// Rotary positions of the tokens held: autograd::rotary run by run, in place as there.
autograd::Variable rotary(autograd::Tape& tape, const autograd::Variable& x, int64_t heads, int64_t head_dim,
                          const nn::TokenMap& tokens, const kernel::RotaryAngles& angles);

}  // namespace esp::parallel
