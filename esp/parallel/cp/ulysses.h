// DeepSpeed-Ulysses attention (Jacobs et al. 2023), context parallelism: an all-to-all turns (T/c tokens, all heads)
// into (all tokens, heads/c) for queries, keys and values, plain attention runs on whole sequences, and a second
// all-to-all reverses it. Bytes a rank sends, with e bytes per element: (c−1)/c·B·T/c·(2·heads + 2·kv_heads)·head_dim·e
// forward, the same backward.
//
// Tokens are sharded contiguously. The heads must divide over the ranks. The key/value heads must divide over the
// ranks, or the ranks over them; then ranks that share a head each have a copy, and its gradients are summed by the
// owner of the tokens. Heads see whole sequences, so every head is bit-identical to one device.
#pragma once

#include <string>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// The rule these heads violate on `num_ranks`; empty if none.
std::string ulysses_obstacle(int64_t heads, int64_t kv_heads, int num_ranks);

// Like ring_attention, with a contiguous layout. UsageError if there is an obstacle.
autograd::Variable ulysses_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                     const autograd::AttentionArgs& options, const ContextGroup& group);

}  // namespace esp::parallel
