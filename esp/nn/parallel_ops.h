// ParallelOps: the layer operations whose operands may be sharded over ranks. The result does not depend on the
// sharding. The base class is for a single device; esp/parallel implements tensor, sequence, context and expert
// parallelism.
//
// "The stream" is the residual stream between sub-layers: [B, T, dim], or under sequence parallelism [1, rows, dim], a
// contiguous range of its B·T rows. For a sharded weight matrix, each rank passes its own shard (Parameter::sections).
// Each operation is either column parallel or row parallel, so a layer never tests for parallelism.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/functions/cross_entropy.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/moe/token_dispatcher.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

// Weights of act(x·W1 + b1)·W2 + b2 or, gated, of (silu(x·Wg) ∘ x·Wu)·W2 + b2 with W1 = [Wg | Wu].
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

  // Column parallel: y = x·W + b with W sharded by outputs. x is the stream; y has all rows and this rank's columns,
  // [B, T, ..].
  virtual autograd::Variable column_parallel(ForwardContext& pass, const autograd::Variable& x, autograd::Weight& w,
                                             autograd::Weight* b) const;
  // Row parallel: y = x·W + b with W sharded by inputs. x has this rank's columns; y is the stream.
  virtual autograd::Variable row_parallel(ForwardContext& pass, const autograd::Variable& x, autograd::Weight& w,
                                          autograd::Weight* b) const;
  // A column-parallel layer, the activation, and a row-parallel layer: stream → stream. `keep`: store the activation's
  // output for backward.
  virtual autograd::Variable mlp(ForwardContext& pass, const autograd::Variable& x, const MlpWeights& weights,
                                 bool keep) const;

  // Looks up ids [B, T] in the table, which may be sharded, and returns the stream. Adds the rows of `positions` for
  // the local tokens, if given; `first_position` is the position of the first token.
  virtual autograd::Variable lookup(ForwardContext& pass, const tensor::Tensor& ids, const Parameter& table,
                                    const Parameter* positions, int64_t first_position) const;
  // Cross entropy of x·Wᵀ + b with W [classes, dim], which may be sharded by rows. x is the stream, or [B, dim]
  // selected from the result of `gather_stream`. The total is the sum over the local targets; it is equal on all ranks
  // that hold shards of W.
  virtual autograd::Loss loss(ForwardContext& pass, const autograd::Variable& x, const Parameter& w, const Parameter* b,
                              const tensor::Tensor& targets, double scale) const;
  // Logits x·Wᵀ + b of all classes; nothing is recorded on the tape.
  virtual tensor::Tensor logits(ForwardContext& pass, const tensor::Tensor& x, const Parameter& w,
                                const Parameter* b) const;

  // Rotary positions (if theta > 0) and self attention. Each rank processes its local heads over the whole sequence:
  // [B, T, (heads + 2·kv_heads)·head_dim] of the local tokens → [B, T, heads·head_dim].
  virtual autograd::Variable attention(ForwardContext& pass, const autograd::Variable& qkv,
                                       const autograd::AttentionArgs& options, const kernel::RotaryAngles& rope) const;
  // Dropout of the stream or of [B, dim]. Elements are numbered over the whole batch and all tokens, so the mask does
  // not depend on the sharding.
  virtual autograd::Variable dropout(ForwardContext& pass, const autograd::Variable& x, double rate,
                                     const kernel::DropoutKey& key) const;
  // Gathers all tokens of the stream on every rank: [B, T, dim].
  virtual autograd::Variable gather_stream(ForwardContext& pass, const autograd::Variable& x) const;
  // The dispatcher that moves token rows to the experts and back.
  virtual const TokenDispatcher& experts() const;
};

}  // namespace esp::nn
