// DeepSpeed-Ulysses attention (Jacobs et al. 2023), context parallelism. An all-to-all converts queries, keys and
// values from (T/c tokens, all heads) to (all tokens, heads/c). Plain attention runs on whole sequences, and a second
// all-to-all converts its output back. Bytes sent per rank in forward, and again in backward, with e bytes per element:
// (c−1)/c·B·T/c·(2·heads + 2·kv_heads)·head_dim·e.
//
// Tokens are sharded contiguously. The number of heads must be divisible by the number of ranks. The number of
// key/value heads must be divisible by the number of ranks, or divide it. In the second case each
// rank that shares a KV head has a replica of it; the rank that holds the tokens sums the gradients of the replicas.
// Every head sees whole sequences, so the output is bit-identical to that of one device.
#pragma once

#include <string>

#include "esp/autograd/functions/attention.h"
#include "esp/parallel/cp/context_group.h"

namespace esp::parallel {

// Returns an error message if these heads cannot be sharded over `num_ranks` ranks, otherwise "".
std::string ulysses_violation(int64_t heads, int64_t kv_heads, int num_ranks);

// Like ring_attention, with a contiguous layout. Throws UsageError if ulysses_violation is not empty.
autograd::Variable ulysses_attention(autograd::Tape& tape, const autograd::Variable& qkv,
                                     const autograd::AttentionArgs& options, const ContextGroup& group);

}  // namespace esp::parallel
