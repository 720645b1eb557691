// ParallelOps: the layer operations whose operands may be sharded over ranks; the result does not depend on the
// sharding. The base class is for a single device; esp/parallel implements tensor, sequence, context and expert
// parallelism.
//
// The stream is the residual stream between sub-layers: [B, T, dim], or under sequence parallelism [1, rows, dim], a
// run of its B·T rows. A sharded matrix is this rank's shard (Parameter::sections). Each operation knows whether it is
// column or row parallel, so a layer never tests for parallelism.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/functions/cross_entropy.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/moe/token_dispatcher.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

// act(x·W1 + b1)·W2 + b2, or gated, (silu(x·Wg) ∘ x·Wu)·W2 + b2 with W1 = [Wg | Wu].
struct MlpWeights {
  autograd::Weight& w1;
  autograd::Weight* b1;
  autograd::Weight& w2;
  autograd::Weight* b2;
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;
};

class ParallelOps {
 public:
  virtual ~ParallelOps() = default;

  // Column parallel: y = x·W + b with W sharded by outputs; stream → this rank's columns, [B, T, ..] with all rows.
  virtual autograd::Variable column_parallel(ForwardContext& pass, const autograd::Variable& x, autograd::Weight& w,
                                             autograd::Weight* b) const;
  // Row parallel: y = x·W + b with W sharded by inputs; this rank's columns → stream.
  virtual autograd::Variable row_parallel(ForwardContext& pass, const autograd::Variable& x, autograd::Weight& w,
                                          autograd::Weight* b) const;
  // Column parallel, activation, row parallel: stream → stream. `keep`: the activation's output is kept for backward.
  virtual autograd::Variable mlp(ForwardContext& pass, const autograd::Variable& x, const MlpWeights& weights,
                                 bool keep) const;

  // ids [B, T] → stream: rows of the table, sharded or not, plus the rows of `positions` of the local tokens, the first
  // of which is `first_position`.
  virtual autograd::Variable lookup(ForwardContext& pass, const tensor::Tensor& ids, const Parameter& table,
                                    const Parameter* positions, int64_t first_position) const;
  // Cross entropy of x·Wᵀ + b with W [classes, dim], sharded by rows or not; x is the stream, or [B, dim] selected from
  // `whole`. The total covers the local targets and is equal on all ranks that shard W.
  virtual autograd::Loss loss(ForwardContext& pass, const autograd::Variable& x, const Parameter& w, const Parameter* b,
                              const tensor::Tensor& targets, double scale) const;
  // x·Wᵀ + b of all classes; nothing is recorded.
  virtual tensor::Tensor logits(ForwardContext& pass, const tensor::Tensor& x, const Parameter& w,
                                const Parameter* b) const;

  // Rotary positions (theta > 0) and self attention of the local heads over the whole sequence: [B, T, (heads +
  // 2·kv_heads)·head_dim] of the local tokens → [B, T, heads·head_dim].
  virtual autograd::Variable attention(ForwardContext& pass, const autograd::Variable& qkv,
                                       const autograd::AttentionArgs& options, const kernel::RotaryAngles& rope) const;
  // Dropout of the stream or of [B, dim]; elements are numbered over the whole batch and all tokens.
  virtual autograd::Variable dropout(ForwardContext& pass, const autograd::Variable& x, double rate,
                                     const kernel::DropoutKey& key) const;
  // The stream as [B, T, dim] with all tokens.
  virtual autograd::Variable whole(ForwardContext& pass, const autograd::Variable& x) const;
  // Moves rows to the experts and back.
  virtual const TokenDispatcher& experts() const;
};

}  // namespace esp::nn
