// Multi-head attention, its projections included: self attention with packed q, k, v, and cross attention of one
// sequence over another. Heads may share keys and values in groups.
//
// Self attention owns `<name>.qkv` [dim, (heads + 2·kv_heads)·head_dim] laid out [q | k | v] and `<name>.out`; cross
// attention `<name>.q`, `<name>.kv` [k | v] and `<name>.out`. Whole heads are divided among those who hold the model.
#pragma once

#include "esp/kernel/rotary_angles.h"
#include "esp/nn/layers/dropout.h"
#include "esp/nn/layers/linear.h"

namespace esp::nn {

struct AttentionOptions {
  int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false, bias = true;
  kernel::RotaryAngles rope{.theta = 0};
  DropoutSite dropout;  // of the probabilities
  Init init, out_init;  // out_init: of the projection that feeds the residual stream

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

class SelfAttention {
 public:
  SelfAttention(ParameterList& list, const std::string& name, const AttentionOptions& options);

  // x [B, T, dim]; lengths i32 [B] where padding is to be masked, else undefined.
  autograd::Variable operator()(Pass& pass, const autograd::Variable& x, const tensor::Tensor& lengths) const;

  // x are the tokens after the `length` ones whose keys and values `cache` [B, capacity, 2·kv_width] holds; theirs are
  // written behind. Inference only: nothing is recorded.
  autograd::Variable extend(Pass& pass, const autograd::Variable& x, const tensor::Tensor& cache, int64_t length) const;

 private:
  AttentionOptions options_;  // of the heads held
  int64_t first_head_, all_heads_;
  Linear qkv_, out_;
};

class CrossAttention {
 public:
  CrossAttention(ParameterList& list, const std::string& name, const AttentionOptions& options);

  // x [B, T, dim] looks at memory [B, Tm, dim], of which `lengths` are not padding.
  autograd::Variable operator()(Pass& pass, const autograd::Variable& x, const autograd::Variable& memory,
                                const tensor::Tensor& lengths) const;

  // The same in two parts, for a memory that many calls look at: its keys and values [B, Tm, 2·kv_width], once.
  autograd::Variable keys_values(Pass& pass, const autograd::Variable& memory) const { return kv_(pass, memory); }
  autograd::Variable look(Pass& pass, const autograd::Variable& x, const autograd::Variable& kv,
                          const tensor::Tensor& lengths) const;

 private:
  autograd::Variable looked(Pass& pass, const autograd::Variable& q, const autograd::Variable& kv,
                            const tensor::Tensor& lengths) const;

  AttentionOptions options_;
  int64_t first_head_, all_heads_;
  Linear q_, kv_, out_;
};

}  // namespace esp::nn
