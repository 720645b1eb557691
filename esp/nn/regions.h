// What layers do where operands may be divided among several holders of one model, and where the result is the same
// whoever holds what. The base class is one holder's: plain functions. esp/parallel has the others'.
//
// The stream is what runs between sub-layers: [B, T, dim], or where holders divide its tokens too [1, rows, dim], a run
// of its B·T rows. A divided matrix is this holder's part of it (Parameter::sections); a verb knows its place in the
// mathematics, so a layer never asks whether anything is divided.
#pragma once

#include "esp/autograd/functions/attention.h"
#include "esp/autograd/functions/cross_entropy.h"
#include "esp/kernel/activation.h"
#include "esp/kernel/rotary_angles.h"
#include "esp/nn/moe/exchange.h"
#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

// act(x·W1 + b1)·W2 + b2, or gated, (silu(x·Wg) ∘ x·Wu)·W2 + b2 with W1 = [Wg | Wu].
struct PerceptronWeights {
  autograd::Weight& w1;
  autograd::Weight* b1;
  autograd::Weight& w2;
  autograd::Weight* b2;
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;
};

class Regions {
 public:
  virtual ~Regions() = default;

  // y = x·W + b, the outputs divided: the stream → this holder's columns, [B, T, ..] with all rows.
  virtual autograd::Variable columns(Pass& pass, const autograd::Variable& x, autograd::Weight& w,
                                     autograd::Weight* b) const;
  // y = x·W + b, the inputs divided: this holder's columns → the stream.
  virtual autograd::Variable rows(Pass& pass, const autograd::Variable& x, autograd::Weight& w,
                                  autograd::Weight* b) const;
  // Columns, activation, rows: stream → stream. `keep`: the activation's output is kept for backward.
  virtual autograd::Variable perceptron(Pass& pass, const autograd::Variable& x, const PerceptronWeights& weights,
                                        bool keep) const;

  // ids [B, T] → the stream: rows of the table, divided or not, plus the rows of `positions` of the tokens held, the
  // first of which is `first_position`.
  virtual autograd::Variable lookup(Pass& pass, const tensor::Tensor& ids, const Parameter& table,
                                    const Parameter* positions, int64_t first_position) const;
  // Cross entropy of x·Wᵀ + b with W [classes, dim] divided by rows or not; x is the stream, or [B, dim] where it has
  // been picked from `whole`. The total is over the targets held here, and the same for all who divide W.
  virtual autograd::Loss loss(Pass& pass, const autograd::Variable& x, const Parameter& w, const Parameter* b,
                              const tensor::Tensor& targets, double scale) const;
  // x·Wᵀ + b of all classes, for whoever looks at them; nothing is recorded.
  virtual tensor::Tensor logits(Pass& pass, const tensor::Tensor& x, const Parameter& w, const Parameter* b) const;

  // Rotary positions (theta > 0) and self attention of the heads held over the whole sequence:
  // [B, T, (heads + 2·kv_heads)·head_dim] of the tokens held → [B, T, heads·head_dim].
  virtual autograd::Variable attention(Pass& pass, const autograd::Variable& qkv,
                                       const autograd::AttentionOptions& options,
                                       const kernel::RotaryAngles& rope) const;
  // Of the stream, or of [B, dim]; elements are numbered over the whole batch and all tokens.
  virtual autograd::Variable dropout(Pass& pass, const autograd::Variable& x, double rate,
                                     const kernel::DropoutKey& key) const;
  // The stream as [B, T, dim] with all its tokens.
  virtual autograd::Variable whole(Pass& pass, const autograd::Variable& x) const;
  // The way of rows to the experts and back.
  virtual const ExpertExchange& experts() const;
};

}  // namespace esp::nn
