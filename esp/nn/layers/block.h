// A transformer block: self attention, optional cross attention, feed-forward. Each is a residual branch whose norm is
// applied before it (pre-norm, GPT-2 and LLaMA) or after the addition (post-norm, BERT).
//
// Parameters `<name>.norm1`, `.attention`, [`.norm_cross`, `.cross`,] `.norm2`, `.mlp`. The feed-forward may be a
// mixture of experts (moe/moe.h), whose parameters go into a separate list if one is given.
#pragma once

#include <optional>

#include "esp/nn/layers/attention.h"
#include "esp/nn/layers/mlp.h"
#include "esp/nn/layers/norm.h"
#include "esp/nn/moe/moe.h"

namespace esp::nn {

struct BlockOptions {
  AttentionOptions attention;
  MlpOptions mlp;
  MoeOptions moe;  // mixture of experts; used instead of mlp if num_experts > 0
  NormOptions norm;
  bool post_norm = false, cross = false;
  double dropout = 0;       // dropout rate of the attention probabilities and of every residual branch
  uint64_t first_site = 0;  // the block uses the dropout sites first_site … first_site + kSitesPerBlock − 1
};
inline constexpr uint64_t kSitesPerBlock = 8;

// Inputs of a block besides the residual stream; a tensor is undefined if the model does not use it.
struct BlockInputs {
  tensor::Tensor lengths;         // i32 [B]: number of non-padding tokens in each sequence of the stream
  autograd::Variable memory;      // encoder output [B, Tm, dim]
  tensor::Tensor memory_lengths;  // i32 [B]: number of non-padding tokens in each sequence of `memory`
};

class Block {
 public:
  Block(ParameterList& list, const std::string& name, const BlockOptions& options, ParameterList* experts = nullptr);

  ResidualStream operator()(ForwardContext& pass, const ResidualStream& stream, const BlockInputs& inputs) const;

  // Incremental decoding of new tokens after `length` cached ones; see SelfAttention::extend. With cross attention
  // `memory` holds the keys and values returned by `keys_values`.
  ResidualStream extend(ForwardContext& pass, const ResidualStream& stream, const tensor::Tensor& cache, int64_t length,
                        const tensor::Tensor& memory = {}, const tensor::Tensor& memory_lengths = {}) const;
  tensor::Tensor keys_values(ForwardContext& pass, const autograd::Variable& memory) const;

 private:
  BlockOptions options_;
  Norm norm1_;
  SelfAttention attention_;
  std::optional<Norm> norm_cross_;
  std::optional<CrossAttention> cross_;
  Norm norm2_;
  std::optional<Mlp> mlp_;
  std::optional<Moe> moe_;
  DropoutSite after_attention_, after_cross_, after_mlp_;
};

}  // namespace esp::nn
