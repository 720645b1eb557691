// Model shape: the sizes of a model and the counts derived from them. Plain data; from a preset, a run file's [model],
// a Hugging Face config.json or a row of published results.
#pragma once

#include <cstdint>
#include <string>

#include "esp/model/config.h"

namespace esp::plan {

struct ModelShape {
  std::string name, arch = "gpt";  // gpt | llama | bert | t5 | any (only the parameter count is known)
  int64_t layers = 0, hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, seq = 0;
  bool gated = false, rms = false, bias = true, tied = true, learned_positions = true, causal = true;
  // Experts: the first `dense_layers` layers have none; of the others every `expert_every`-th does.
  int64_t experts = 0, topk = 0, expert_ffn = 0, shared_experts = 0, dense_layers = 0, expert_every = 1;
  // Latent attention (DeepSeek): ranks of the compressed queries and keys; 0: standard attention.
  int64_t q_lora = 0, kv_lora = 0, rope_dim = 0, v_dim = 0;
  double given_parameters = 0;  // where only the count is known (arch "any")
  int64_t positions = 0;        // learned; 0: seq
  int64_t shared_ffn = 0;       // width of each shared expert; 0: expert_ffn
  bool qkv_bias = false;        // of queries, keys and values only
  double other_parameters = 0;  // beyond blocks, tables and final norm: segments, poolers, norms of heads

  double parameters() const;  // all
  double layer_parameters(int64_t layer) const;
  double attention_parameters() const;                // of one layer, without its norm
  double perceptron_parameters(int64_t width) const;  // one feed-forward
  double norm_parameters() const;
  double active_parameters() const;                              // used by one token
  double embedding_parameters() const, head_parameters() const;  // head: 0 when tied; positions are embeddings
  bool has_experts(int64_t layer) const;
  int64_t num_expert_layers() const;
  int64_t first_across() const;  // the first layer with cross-attention; the number of layers if there is none
  int64_t expert_width() const { return expert_ffn > 0 ? expert_ffn : ffn; }
};

// Counts exactly as model::parameter_count does.
ModelShape shape_of(const model::ModelConfig& config, const std::string& name);

}  // namespace esp::plan
