// Model shape: the sizes of a model, and counts derived from them. Plain data. It comes from a preset, the [model]
// table of a run file, a Hugging Face config.json, or a row of published results.
#pragma once

#include <cstdint>
#include <string>

#include "esp/model/config.h"

namespace esp::plan {

struct ModelShape {
  std::string name, arch = "gpt";  // gpt | llama | bert | t5 | any (only the parameter count is known)
  int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, seq = 0;
  bool gated = false, rms = false, bias = true, tied = true, learned_positions = true, causal = true;
  // Experts. The first `dense_layers` layers have no experts; of the layers after them, every `expert_every`-th has.
  int64_t experts = 0, topk = 0, expert_ffn = 0, shared_experts = 0, dense_layers = 0, expert_every = 1;
  // Multi-head latent attention (DeepSeek): dimension of the compressed queries (q_lora) and of the compressed keys and
  // values (kv_lora). kv_lora = 0: standard attention.
  int64_t q_lora = 0, kv_lora = 0, rope_dim = 0, v_dim = 0;
  double given_parameters = 0;  // total number of parameters, for arch "any"
  int64_t positions = 0;        // rows of the learned position table; 0: seq
  int64_t shared_ffn = 0;       // feed-forward width of each shared expert; 0: expert_ffn
  bool qkv_bias = false;        // queries, keys and values have a bias even if `bias` is false
  double other_parameters = 0;  // parameters that the formulas do not count: segments, poolers, norms of heads

  double parameters() const;  // all parameters
  double layer_parameters(int64_t layer) const;
  double attention_parameters() const;                // attention of one layer, without its norm
  double perceptron_parameters(int64_t width) const;  // one feed-forward of this width
  double norm_parameters() const;
  double active_parameters() const;  // parameters that one token uses (topk experts)
  // embedding includes learned positions; head: 0 if tied
  double embedding_parameters() const, head_parameters() const;
  bool has_experts(int64_t layer) const;
  int64_t num_expert_layers() const;
  int64_t first_across() const;  // index of the first layer with cross-attention; `layers` if there is none
  int64_t expert_width() const { return expert_ffn > 0 ? expert_ffn : ffn; }
};

// Shape of a model configuration. Its parameter count equals model::parameter_count(config).
ModelShape shape_of(const model::ModelConfig& config, const std::string& name);

}  // namespace esp::plan
