// Ring attention (Liu et al. 2023), context parallelism: every rank keeps its queries; keys and values travel around
// the ring.
//
// Step j of c: the queries of rank r attend to the keys of rank r − j while those keys are being sent to r + 1. Block
// outputs are merged by their log-sum-exps in the accumulation type (kernel::attention_forward_block). Backward goes
// around again with the sums dK, dV, in the accumulation type, following their block; they return after c hops. Bytes a
// rank sends, with q = 2·B·T_local·kv_heads·head_dim elements: forward (c−1)·q, backward (c−1)·q and c·q of sums. Keys
// use two buffers, sums three: memory is that of T/c tokens.
//
// The result equals self attention over the whole sequence up to rounding, for any number of threads. Dropout is
// numbered by positions in the whole sequence; key_lengths count its tokens.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// qkv [B, T_local, (heads + 2·kv_heads)·head_dim] of the tokens group.tokens(rank) → [B, T_local, heads·head_dim].
autograd::Variable ring_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                  const autograd::AttentionArgs& options, const ContextGroup& group);

// Rotary positions of the local tokens: autograd::rotary per run, in place.
autograd::Variable rotary(autograd::Tape& tape, const autograd::Variable& x, int64_t heads, int64_t head_dim,
                          const nn::TokenMap& tokens, const kernel::RotaryAngles& angles);

}  // namespace esp::parallel
