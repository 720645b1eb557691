// Multi-head and grouped-query attention on packed q, k and v. Kernels read each head with strides; no head is copied
// into separate memory.
#pragma once

#include "esp/autograd/tape.h"
#include "esp/kernel/attention.h"

namespace esp::autograd {

struct AttentionArgs {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false;
  tensor::Tensor key_lengths;  // i32 [B]: valid keys of each sequence; undefined: no padding
  double dropout = 0;
  kernel::DropoutKey key;
  // The dropout mask is indexed over the whole batch and all heads. first_sequence, first_head: global indices of this
  // call's first sequence and first head. all_heads: total number of heads; 0: this call has all of them.
  int64_t first_sequence = 0, first_head = 0, all_heads = 0;
};

// qkv [B, T, (heads + 2·kv_heads)·head_dim], laid out [q | k | v] → [B, T, heads·head_dim].
Variable self_attention(Tape& tape, const Variable& qkv, const AttentionArgs& options);

// q [B, Tq, heads·head_dim], kv [B, Tk, 2·kv_heads·head_dim] laid out [k | v] → [B, Tq, heads·head_dim].
Variable cross_attention(Tape& tape, const Variable& q, const Variable& kv, const AttentionArgs& options);

}  // namespace esp::autograd
