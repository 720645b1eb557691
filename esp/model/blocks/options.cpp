#include "esp/model/blocks/options.h"

#include <cmath>

namespace esp::model {

nn::NormOptions norm_options(const ModelConfig& c) {
  return {c.norm, c.norm_eps, c.bias};
}

nn::Head vocabulary_head(nn::ParameterList& list, const ModelConfig& c, bool bias, nn::Parameter* tokens) {
  const nn::Init init = nn::Init::normal(c.init_std);
  if (!c.tie_embeddings) return {list, "head", c.dim, c.vocab, bias, init, nullptr, true};
  if (!tokens) {
    tokens = &list.add("embedding.weight", {c.vocab, c.dim}, init, true, nn::ShardSpec::along(0));
    tokens->counted = false;  // counted on the stem's stage, which has the other replica
  }
  return {list, "head", c.dim, c.vocab, bias, init, tokens, true};
}

nn::BlockOptions block_options(const ModelConfig& c, int64_t index, bool causal, bool cross, bool scaled_residual) {
  const nn::Init init = nn::Init::normal(c.init_std);
  const double shrink = scaled_residual ? 1 / std::sqrt(2.0 * static_cast<double>(c.layers)) : 1;
  const nn::Init out_init = nn::Init::normal(c.init_std * shrink);

  nn::BlockOptions o;
  o.attention.dim = c.dim;
  o.attention.heads = c.heads;
  o.attention.kv_heads = c.kv_heads_or_all();
  o.attention.head_dim = c.head_dim();
  o.attention.causal = causal;
  o.attention.bias = c.bias;
  if (c.positions == Positions::rotary) o.attention.rope = c.rope;
  o.attention.init = init;
  o.attention.out_init = out_init;
  o.mlp = {c.dim, c.ffn_or_default(), c.activation, c.gated, c.bias, init, out_init};
  if (c.has_experts(index)) {
    o.moe.num_experts = c.experts;
    o.moe.num_chosen = c.experts_per_token;
    o.moe.capacity = c.expert_capacity;
    o.moe.aux_weight = c.expert_aux;
    o.moe.z_weight = c.expert_z;
    o.moe.shared_ffn = c.shared_expert;
    o.moe.layer = static_cast<int>(index);
    o.moe.expert = o.mlp;
  }
  o.norm = norm_options(c);
  o.post_norm = c.post_norm;
  o.cross = cross;
  o.dropout = c.dropout;
  o.first_site = kFirstBlockSite + static_cast<uint64_t>(index) * nn::kSitesPerBlock;
  return o;
}

}  // namespace esp::model
