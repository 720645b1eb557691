// softmax(Q·Kᵀ·scale + mask)·V and its gradients, tile by tile: no T×T matrix is ever stored. What forward leaves for
// backward is the output and one log-sum-exp per query.
//
// Element (b, t, h, d) of q lies at b·q.batch + t·q.token + h·D + d, and so for k, v, o; packed projections are read in
// place. Query head h reads key/value head h / (heads / kv_heads). Query i of a sequence sees keys j < key_lengths[b]
// (all, when null) and, when causal, j ≤ i + causal_offset. A query that sees no key gives zeros, and lse −∞. lse is
// [B, heads, num_queries] in the accumulation type. Gradients are overwritten; dk and dv sum over the heads that share
// them.
//
// Attention to keys that come block by block (another rank's keys, visiting) is the same walk interrupted: the block
// functions go on from what earlier blocks left, in the accumulation type throughout. With the o and lse of all blocks
// together, backward of each block gives that block's part of every gradient.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/dropout.h"

namespace esp::kernel {

struct AttentionStride {
  int64_t batch = 0, token = 0;  // elements
};

struct AttentionShape {
  int64_t batch = 0, num_queries = 0, num_keys = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  AttentionStride q, k, v, o;  // gradients have the strides of what they are gradients of
  bool causal = false;
  int64_t causal_offset = 0;             // keys before the first query: a KV cache, or another rank's earlier tokens
  const int32_t* key_lengths = nullptr;  // [batch]
  double scale = 1;                      // usually 1/√head_dim
  int64_t lse_row = 0;                   // elements from one head's lse to the next; 0: num_queries
  double dropout = 0;                    // of the probabilities; drawn by dropout_index
  DropoutKey key;
  int64_t first_batch = 0;  // global index of the first sequence, for the dropout stream alone
  // The same for heads, queries and keys of a call that has a part of them, and how many there are; 0: this call's.
  int64_t first_head = 0, all_heads = 0, first_query = 0, all_queries = 0, first_key = 0, all_keys = 0;

  int64_t lse_stride() const { return lse_row ? lse_row : num_queries; }
  // Probability (b, h, i, j) of this call among those of the whole batch, every head and every token.
  int64_t dropout_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t head = (first_batch + b) * (all_heads ? all_heads : heads) + first_head + h;
    const int64_t row = head * (all_queries ? all_queries : num_queries) + first_query + i;
    return row * (all_keys ? all_keys : num_keys) + first_key + j;
  }
};

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream);
// `workspace` holds attention_workspace_bytes(shape, dtype, stream) bytes and is scratch.
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream);
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Forward over one more block of keys: o (in the accumulation type) and lse hold what the blocks so far gave, and then
// what they gave together with this one. An lse of −∞ says that nothing has been seen: that row of o is not read.
void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Where a block's gradients go, in the accumulation type, with strides of their own: added to, or written over.
struct AttentionSums {
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  AttentionStride q, k, v;
  bool add_q = true, add_kv = true;
};
// o and lse are those of all blocks together.
void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                              const device::Stream& stream);

namespace ref {
void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype);
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, const AttentionShape& shape, DType dtype);
// The block attended to by itself, then merged with what is there.
void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype);
void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, const AttentionShape& shape, DType dtype);
}  // namespace ref

namespace cuda {
decltype(kernel::attention_forward) attention_forward;
decltype(kernel::attention_backward) attention_backward;
decltype(kernel::attention_workspace_bytes) attention_workspace_bytes;
decltype(kernel::attention_forward_block) attention_forward_block;
decltype(kernel::attention_backward_block) attention_backward_block;
}  // namespace cuda

}  // namespace esp::kernel
