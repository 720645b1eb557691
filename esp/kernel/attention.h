// Flash attention: softmax(Q·Kᵀ·scale + mask)·V and its gradients, tile by tile; no T×T matrix is stored. Forward saves
// the output and one log-sum-exp per query for backward.
//
// Element (b, t, h, d) of q is at b·q.batch + t·q.token + h·D + d, and so for k, v, o; packed projections are read in
// place. Query head h reads key/value head h / (heads / kv_heads). Query i of a sequence sees keys j < key_lengths[b]
// (all, if null) and, if causal, j ≤ i + causal_offset. A query that sees no key gives zeros, and lse −∞. lse is [B,
// heads, num_queries] in the accumulation type. Gradients are overwritten; dk and dv sum over the heads that share
// them.
//
// The block functions process keys that arrive in blocks (ring attention): they continue from the results of earlier
// blocks, in the accumulation type. With the final o and lse, the backward of each block gives that block's part of
// every gradient.
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
  AttentionStride q, k, v, o;  // gradients have the strides of their tensors
  bool causal = false;
  int64_t causal_offset = 0;             // keys before the first query: a KV cache, or another rank's earlier tokens
  const int32_t* key_lengths = nullptr;  // [batch]
  double scale = 1;                      // usually 1/√head_dim
  int64_t lse_row = 0;                   // elements between the lse of two heads; 0: num_queries
  double dropout = 0;                    // of the probabilities; drawn by dropout_index
  DropoutKey key;
  int64_t first_batch = 0;  // global index of the first sequence, for the dropout stream alone
  // The same for heads, queries and keys of a partial call, and their totals; 0: this call's.
  int64_t first_head = 0, all_heads = 0, first_query = 0, all_queries = 0, first_key = 0, all_keys = 0;

  int64_t lse_stride() const { return lse_row ? lse_row : num_queries; }
  // Global dropout index of probability (b, h, i, j) of this call.
  int64_t dropout_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t head = (first_batch + b) * (all_heads ? all_heads : heads) + first_head + h;
    const int64_t row = head * (all_queries ? all_queries : num_queries) + first_query + i;
    return row * (all_keys ? all_keys : num_keys) + first_key + j;
  }
};

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream);
// `workspace`: attention_workspace_bytes(shape, dtype, stream) bytes of scratch.
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream);
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Forward over one more block of keys: o (in the accumulation type) and lse hold the result of the previous blocks and
// receive the combined result. lse −∞ means no key yet: that row of o is not read.
void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Destination of a block's gradients, in the accumulation type, with their own strides: added to, or overwritten.
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
// Attention over the block alone, then merged with the previous result.
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
