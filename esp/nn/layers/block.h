// A transformer block: self attention, optional cross attention, feed-forward; each in a residual branch with its norm
// before (pre-norm, GPT-2 and LLaMA) or after the addition (post-norm, BERT).
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
  MoeOptions moe;  // with experts: replaces mlp
  NormOptions norm;
  bool post_norm = false, cross = false;
  double dropout = 0;       // of attention probabilities and of every branch
  uint64_t first_site = 0;  // its dropout sites are first_site … first_site + kSitesPerBlock − 1
};
inline constexpr uint64_t kSitesPerBlock = 8;

// Inputs of a block besides the residual stream. Undefined if absent.
struct BlockInputs {
  tensor::Tensor lengths;         // i32 [B]: non-padding tokens of the stream
  autograd::Variable memory;      // [B, Tm, dim]
  tensor::Tensor memory_lengths;  // i32 [B]
};

class Block {
 public:
  Block(ParameterList& list, const std::string& name, const BlockOptions& options, ParameterList* experts = nullptr);

  ResidualStream operator()(ForwardContext& pass, const ResidualStream& stream, const BlockInputs& inputs) const;

  // New tokens after `length` cached ones; see SelfAttention::extend. With cross attention `memory` holds the keys and
  // values returned by `keys_values`.
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
