// Attention of the DeepSpeed-Ulysses kind (Jacobs et al. 2023): an all-to-all turns (T/c tokens, all heads) into (all
// tokens, heads/c) for queries, keys and values, plain attention runs on whole sequences, and a second all-to-all turns
// the result back. Bytes a rank sends, of e bytes an element: (c−1)/c·B·T/c·(2·heads + 2·kv_heads)·head_dim·e forward,
// the same backward.
//
// Tokens are divided contiguously. The heads must divide over the ranks; key/value heads must too, or else the ranks
// over them: then ranks that share one have a copy each, and its gradients are summed where its tokens are. Heads see
// whole sequences, so every head has the bits it has on one device.
#pragma once

#include <string>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/group.h"

namespace esp::parallel {

// The rule these heads break on `num_ranks`; empty when there is none.
std::string ulysses_obstacle(int64_t heads, int64_t kv_heads, int num_ranks);

// As ring_attention; the group's layout is contiguous. UsageError where there is an obstacle.
autograd::Variable ulysses_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                     const autograd::AttentionOptions& options, const ContextGroup& group);

}  // namespace esp::parallel
