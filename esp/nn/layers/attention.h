// Multi-head attention with its projections. Self attention has packed q, k and v; cross attention attends from one
// sequence to another. Several query heads may share one key and value head (grouped-query attention, GQA).
//
// Self attention owns `<name>.qkv` [dim, (heads + 2·kv_heads)·head_dim] laid out [q | k | v] and `<name>.out`; cross
// attention owns `<name>.q`, `<name>.kv` [k | v] and `<name>.out`. Tensor parallelism shards whole heads.
#pragma once

#include "esp/kernel/rotary_angles.h"
#include "esp/nn/layers/dropout.h"
#include "esp/nn/layers/linear.h"

namespace esp::nn {

struct AttentionOptions {
  int64_t dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
  bool causal = false, bias = true;
  kernel::RotaryAngles rope{.theta = 0};
  DropoutSite dropout;  // dropout of the attention probabilities (scores after the softmax)
  Init init, out_init;  // initial values: init for the q, k and v projections, out_init for the output projection

  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

class SelfAttention {
 public:
  SelfAttention(ParameterList& list, const std::string& name, const AttentionOptions& options);

  // x [B, T, dim]; lengths i32 [B]: number of non-padding tokens per sequence, or undefined.
  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x, const tensor::Tensor& lengths) const;

  // Incremental decoding. `cache` [B, capacity, 2·kv_width] holds the keys and values of the first `length` tokens; x
  // holds the tokens that follow, whose keys and values are appended. Inference only: nothing is recorded on the tape.
  autograd::Variable extend(ForwardContext& pass, const autograd::Variable& x, const tensor::Tensor& cache,
                            int64_t length) const;

 private:
  AttentionOptions options_;  // head counts are those of this rank's shard
  int64_t first_head_, all_heads_;
  Linear qkv_, out_;
};

class CrossAttention {
 public:
  CrossAttention(ParameterList& list, const std::string& name, const AttentionOptions& options);

  // x [B, T, dim] attends to memory [B, Tm, dim]. lengths i32 [B]: number of non-padding tokens of memory per sequence.
  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x, const autograd::Variable& memory,
                                const tensor::Tensor& lengths) const;

  // The same in two steps, for a memory that many calls use: keys_values computes its keys and values [B, Tm,
  // 2·kv_width] once; then each call attends to them.
  autograd::Variable keys_values(ForwardContext& pass, const autograd::Variable& memory) const {
    return kv_(pass, memory);
  }
  autograd::Variable attend(ForwardContext& pass, const autograd::Variable& x, const autograd::Variable& kv,
                            const tensor::Tensor& lengths) const;

 private:
  autograd::Variable attend_heads(ForwardContext& pass, const autograd::Variable& q, const autograd::Variable& kv,
                                  const tensor::Tensor& lengths) const;

  AttentionOptions options_;
  int64_t first_head_, all_heads_;
  Linear q_, kv_, out_;
};

}  // namespace esp::nn
