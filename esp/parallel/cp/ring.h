// Ring attention (Liu et al. 2023), context parallelism: every rank keeps its queries; keys and values travel around
// the ring.
//
// In step j of c, the queries of rank r attend to the keys of rank r − j while those keys are being sent to r + 1.
// Block outputs are merged by their log-sum-exps in the accumulation type (kernel::attention_forward_block). In
// backward the keys and values travel around the ring again. Their gradient sums dK and dV (accumulation type) travel
// with them and are back on their rank after c hops. Elements sent per rank, with q = 2·B·T_local·kv_heads·head_dim:
// (c−1)·q in forward; (c−1)·q and, for the gradient sums, c·q in backward. Keys and values use two buffers, their
// gradient sums three. Memory therefore grows with T/c, not with T.
//
// The result equals self attention over the whole sequence up to rounding, for any number of threads. Dropout
// masks are indexed by positions in the whole sequence; key_lengths count tokens of the whole sequence.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// qkv [B, T_local, (heads + 2·kv_heads)·head_dim] of the local tokens group.tokens(rank) → [B, T_local,
// heads·head_dim].
autograd::Variable ring_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                  const autograd::AttentionArgs& options, const ContextGroup& group);

// Applies rotary positions to the local tokens in place: one autograd::rotary_range per contiguous token range.
autograd::Variable rotary(autograd::Tape& tape, const autograd::Variable& x, int64_t heads, int64_t head_dim,
                          const nn::TokenMap& tokens, const kernel::RotaryAngles& angles);

}  // namespace esp::parallel
