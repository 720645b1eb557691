// softmax(Q·Kᵀ·scale + mask)·V and its gradients, tile by tile: no T×T matrix is ever stored. What forward leaves for
// backward is the output and one log-sum-exp per query.
//
// Element (b, t, h, d) of q lies at b·q.batch + t·q.token + h·D + d, and so for k, v, o; packed projections are read in
// place. Query head h reads key/value head h / (heads / kv_heads). Query i of a sequence sees keys j < key_lengths[b]
// (all, when null) and, when causal, j ≤ i + causal_offset. A query that sees no key gives zeros, and lse −∞. lse is
// [B, heads, num_queries] in the accumulation type. Gradients are overwritten; dk and dv sum over the heads that share
// them.
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
  double dropout = 0;  // of the probabilities; element (b, h, i, j) has index (((first_batch + b)·H + h)·Tq + i)·Tk + j
  DropoutKey key;
  int64_t first_batch = 0;  // global index of the first sequence, for the dropout stream alone
};

void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype, const device::Stream& stream);
// `workspace` holds attention_workspace_bytes(shape, dtype, threads) bytes and is scratch.
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, void* workspace, const AttentionShape& shape, DType dtype,
                        const device::Stream& stream);
int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype, int num_threads);

namespace ref {
void attention_forward(void* o, void* lse, const void* q, const void* k, const void* v, const AttentionShape& shape,
                       DType dtype);
void attention_backward(void* dq, void* dk, void* dv, const void* d_o, const void* o, const void* q, const void* k,
                        const void* v, const void* lse, const AttentionShape& shape, DType dtype);
}  // namespace ref

}  // namespace esp::kernel
