// Flash attention: softmax(Q·Kᵀ·scale + mask)·V and its gradients, tile by tile. No T×T matrix is stored. Forward saves
// the output and one log-sum-exp (lse) per query for backward.
//
// Element (b, t, h, d) of q is at b·q.batch + t·q.token + h·D + d. k, v and o have the same layout with their own
// strides, so packed projections are read in place. Query head h reads key/value head h / (heads / kv_heads)
// (grouped-query attention). Query i of a sequence attends to keys j < key_lengths[b] (all keys, if null) and, if
// causal, j ≤ i + causal_offset. A query without visible keys has output 0 and lse −∞. lse is [B, heads, num_queries]
// in the accumulation type. Gradients are overwritten. dk and dv are sums over the query heads of a group.
//
// The block functions process keys that arrive in blocks (ring attention). They continue from the results of earlier
// blocks, which are in the accumulation type. Backward of a block reads the final o and lse, and computes that block's
// part of every gradient.
#pragma once

#include <cstdint>

#include "esp/base/dtype.h"
#include "esp/device/stream.h"
#include "esp/kernel/dropout.h"

namespace esp::kernel {

struct AttentionStride {
  int64_t batch = 0, token = 0;  // strides in elements: from one sequence to the next, from one token to the next
};

struct AttentionShape {
  int64_t batch = 0, num_queries = 0, num_keys = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  AttentionStride q, k, v, o;  // a gradient has the strides of its tensor
  bool causal = false;
  int64_t causal_offset = 0;             // number of keys before the first query, from a KV cache or from another rank
  const int32_t* key_lengths = nullptr;  // [batch]; null: every sequence has num_keys keys
  double scale = 1;                      // usually 1/√head_dim
  int64_t lse_row = 0;                   // lse stride in elements from one head to the next; 0 means num_queries
  double dropout = 0;                    // dropout rate of the probabilities; dropout_index selects the random numbers
  DropoutKey key;
  int64_t first_batch = 0;  // global index of the first sequence; used only for the dropout mask
  // If the call processes only a part of the attention matrix: global indices of its first head, query and key, and the
  // global counts. A count of 0 means the count of this call. Used only for the dropout mask.
  int64_t first_head = 0, all_heads = 0, first_query = 0, all_queries = 0, first_key = 0, all_keys = 0;

  int64_t lse_stride() const { return lse_row ? lse_row : num_queries; }
  // Global dropout index of probability (b, h, i, j).
  int64_t dropout_index(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t head = (first_batch + b) * (all_heads ? all_heads : heads) + first_head + h;
    const int64_t row = head * (all_queries ? all_queries : num_queries) + first_query + i;
    return row * (all_keys ? all_keys : num_keys) + first_key + j;
  }
};

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream);
// `workspace`: scratch memory of attention_workspace_bytes(shape, dtype, stream) bytes.
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream);
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Attention forward over one more block of keys. On entry, o (in the accumulation type) and lse hold the result of the
// previous blocks. On return they hold the combined result. A row with lse −∞ has no previous result, and its row of o
// is not read.
void attention_forward_block(void* o, void* lse, const void* q, const void* k, const void* v,
                             const AttentionShape& shape, DType dtype, const device::Stream& stream);

// Destination of the gradients of attention_backward_block: buffers in the accumulation type with separate strides.
// add_q, add_kv: add to the buffers; false: overwrite them.
struct AttentionSums {
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  AttentionStride q, k, v;
  bool add_q = true, add_kv = true;
};
// o and lse are the final results, after all blocks of keys.
void attention_backward_block(const AttentionSums& sums, const void* d_o, const void* o, const void* q, const void* k,
                              const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                              const device::Stream& stream);

namespace ref {
void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype);
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, const AttentionShape& shape, DType dtype);
// Computes attention over this block only, then merges it with the previous result.
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
