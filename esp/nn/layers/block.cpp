#include "esp/nn/layers/block.h"

namespace esp::nn {

using autograd::Variable;

namespace {

AttentionOptions attention_of(const BlockOptions& options, bool cross) {
  AttentionOptions attention = options.attention;
  attention.dropout = {options.dropout, options.first_site + (cross ? 1 : 0)};
  if (cross) {
    attention.causal = false;
    attention.rope.theta = 0;
  }
  return attention;
}

// One residual branch: stream → stream + dropout(f(stream)). The norm is applied before f (pre-norm) or after the
// addition (post-norm).
template <typename F>
ResidualStream branch(ForwardContext& pass, const ResidualStream& stream, const Norm& norm, bool post_norm,
                      const DropoutSite& dropout, F f) {
  if (post_norm) {
    const Variable x = close(pass, stream);
    return {norm(pass, ResidualStream{x, dropout(pass, f(x))}).y, {}};
  }
  const autograd::ResidualNorm in = norm(pass, stream);
  return {in.sum, dropout(pass, f(in.y))};
}

}  // namespace

Block::Block(ParameterList& list, const std::string& name, const BlockOptions& options, ParameterList* experts)
    : options_(options),
      norm1_(list, name + ".norm1", options.attention.dim, options.norm),
      attention_(list, name + ".attention", attention_of(options, false)),
      norm_cross_(options.cross ? std::optional<Norm>(std::in_place, list, name + ".norm_cross", options.attention.dim,
                                                      options.norm)
                                : std::nullopt),
      cross_(options.cross
                 ? std::optional<CrossAttention>(std::in_place, list, name + ".cross", attention_of(options, true))
                 : std::nullopt),
      norm2_(list, name + ".norm2", options.attention.dim, options.norm),
      after_attention_{options.dropout, options.first_site + 2},
      after_cross_{options.dropout, options.first_site + 3},
      after_mlp_{options.dropout, options.first_site + 4} {
  if (options.moe.num_experts > 0) {
    moe_.emplace(list, experts ? *experts : list, name + ".mlp", options.moe);
  } else {
    mlp_.emplace(list, name + ".mlp", options.mlp);
  }
}

ResidualStream Block::operator()(ForwardContext& pass, const ResidualStream& in, const BlockInputs& inputs) const {
  const bool post = options_.post_norm;
  ResidualStream stream = branch(pass, in, norm1_, post, after_attention_,
                                 [&](const Variable& x) { return attention_(pass, x, inputs.lengths); });
  if (cross_)
    stream = branch(pass, stream, *norm_cross_, post, after_cross_,
                    [&](const Variable& x) { return (*cross_)(pass, x, inputs.memory, inputs.memory_lengths); });
  return branch(pass, stream, norm2_, post, after_mlp_,
                [&](const Variable& x) { return moe_ ? (*moe_)(pass, x) : (*mlp_)(pass, x); });
}

tensor::Tensor Block::keys_values(ForwardContext& pass, const Variable& memory) const {
  return cross_->keys_values(pass, memory).value();
}

ResidualStream Block::extend(ForwardContext& pass, const ResidualStream& in, const tensor::Tensor& cache,
                             int64_t length, const tensor::Tensor& memory, const tensor::Tensor& memory_lengths) const {
  const bool post = options_.post_norm;
  ResidualStream stream = branch(pass, in, norm1_, post, after_attention_,
                                 [&](const Variable& x) { return attention_.extend(pass, x, cache, length); });
  if (cross_)
    stream = branch(pass, stream, *norm_cross_, post, after_cross_,
                    [&](const Variable& x) { return cross_->attend(pass, x, Variable(memory), memory_lengths); });
  return branch(pass, stream, norm2_, post, after_mlp_,
                [&](const Variable& x) { return moe_ ? moe_->extend(pass, x) : (*mlp_)(pass, x); });
}

}  // namespace esp::nn
