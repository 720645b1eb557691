// Parameter counts: the formulas of esp/model/counts.h, extended for published models: heads of any width, latent
// attention (DeepSeek-V2, 2024), experts of a different width. Closed formulas without loops, because a search
// evaluates them often.
#include "esp/plan/shape.h"

#include <algorithm>
#include <limits>

#include "esp/model/counts.h"

namespace esp::plan {
namespace {

double linear(int64_t in, int64_t out, bool bias) {
  return static_cast<double>(in) * static_cast<double>(out) + (bias ? static_cast<double>(out) : 0.0);
}

// True if only the parameter count of the model is known.
bool is_opaque(const ModelShape& s) {
  return s.layers == 0 || s.hidden == 0;
}

int64_t head_width(const ModelShape& s) {
  return s.head_dim > 0 ? s.head_dim : s.hidden / std::max<int64_t>(s.heads, 1);
}

double latent_attention(const ModelShape& s) {
  const int64_t width = head_width(s), value = s.v_dim > 0 ? s.v_dim : width, query = s.heads * (width + s.rope_dim);
  const double queries =
      s.q_lora > 0 ? linear(s.hidden, s.q_lora, false) + static_cast<double>(s.q_lora) + linear(s.q_lora, query, false)
                   : linear(s.hidden, query, false);
  const double keys = linear(s.hidden, s.kv_lora + s.rope_dim, false) + static_cast<double>(s.kv_lora) +
                      linear(s.kv_lora, s.heads * (width + value), false);
  return queries + keys + linear(s.heads * value, s.hidden, false);
}

double expert_layer_extra(const ModelShape& s, int64_t experts_counted) {
  const double shared = s.shared_experts > 0
                            ? static_cast<double>(s.shared_experts) *
                                  s.perceptron_parameters(s.shared_ffn > 0 ? s.shared_ffn : s.expert_width())
                            : 0.0;
  return static_cast<double>(experts_counted) * s.perceptron_parameters(s.expert_width()) +
         linear(s.hidden, s.experts, false) + shared;
}

double count(const ModelShape& s, int64_t experts_counted) {
  if (is_opaque(s)) return s.given_parameters;
  const auto layers = static_cast<double>(s.layers);
  const auto with_experts = static_cast<double>(s.num_expert_layers());
  double total = layers * (s.attention_parameters() + 2 * s.norm_parameters());
  if (s.first_across() < s.layers)
    total += static_cast<double>(s.layers - s.first_across()) * (s.attention_parameters() + s.norm_parameters());
  total += (layers - with_experts) * s.perceptron_parameters(s.ffn);
  if (with_experts > 0) total += with_experts * expert_layer_extra(s, experts_counted);
  return total + s.embedding_parameters() + s.head_parameters() + s.norm_parameters() + s.other_parameters;
}

}  // namespace

double ModelShape::norm_parameters() const {
  return static_cast<double>(!rms && bias ? 2 * hidden : hidden);
}

double ModelShape::attention_parameters() const {
  if (kv_lora > 0) return latent_attention(*this);
  const int64_t width = head_width(*this), kv = (kv_heads > 0 ? kv_heads : heads) * width;
  return linear(hidden, heads * width, bias || qkv_bias) + 2 * linear(hidden, kv, bias || qkv_bias) +
         linear(heads * width, hidden, bias);
}

double ModelShape::perceptron_parameters(int64_t width) const {
  return (gated ? 2 : 1) * linear(hidden, width, bias) + linear(width, hidden, bias);
}

bool ModelShape::has_experts(int64_t layer) const {
  return experts > 0 && layer >= dense_layers && (layer - dense_layers) % expert_every == expert_every - 1;
}

int64_t ModelShape::num_expert_layers() const {
  return experts > 0 ? std::max<int64_t>(layers - dense_layers, 0) / expert_every : 0;
}

int64_t ModelShape::first_across() const {
  return arch == "t5" ? layers / 2 : std::numeric_limits<int64_t>::max();
}

double ModelShape::layer_parameters(int64_t layer) const {
  if (is_opaque(*this)) return 0;
  double total = attention_parameters() + 2 * norm_parameters();
  if (layer >= first_across()) total += attention_parameters() + norm_parameters();
  return total + (has_experts(layer) ? expert_layer_extra(*this, experts) : perceptron_parameters(ffn));
}

double ModelShape::embedding_parameters() const {
  if (is_opaque(*this)) return 0;
  const int64_t places = learned_positions ? (positions > 0 ? positions : seq) : 0;
  return static_cast<double>(vocab + places) * static_cast<double>(hidden);
}

double ModelShape::head_parameters() const {
  return tied || is_opaque(*this) ? 0 : static_cast<double>(vocab) * static_cast<double>(hidden);
}

double ModelShape::parameters() const {
  return count(*this, experts);
}

double ModelShape::active_parameters() const {
  return count(*this, topk);
}

ModelShape shape_of(const model::ModelConfig& config, const std::string& name) {
  ModelShape s;
  s.name = name;
  s.arch = config.arch;
  s.layers = config.arch == "t5" ? 2 * config.layers : config.layers;
  s.hidden = config.dim;
  s.ffn = config.ffn_or_default();
  s.heads = config.heads;
  s.kv_heads = config.kv_heads_or_all();
  s.head_dim = config.heads > 0 ? config.head_dim() : 0;
  s.vocab = config.vocab;
  s.seq = config.seq_len;
  s.gated = config.gated;
  s.rms = config.norm == kernel::NormKind::rms;
  s.bias = config.bias;
  s.tied = config.tie_embeddings || config.arch == "bert" || config.arch == "t5";
  s.learned_positions = config.positions == model::Positions::learned;
  s.causal = config.arch != "bert";
  s.experts = config.experts;
  s.topk = config.experts > 0 ? config.experts_per_token : 0;
  s.expert_ffn = config.experts > 0 ? s.ffn : 0;
  s.expert_every = std::max<int64_t>(config.expert_every, 1);
  s.shared_experts = config.shared_expert > 0 ? 1 : 0;
  s.shared_ffn = config.shared_expert;
  // Parameters that the formula does not count: segments, poolers and heads of encoders.
  if (!is_opaque(s)) s.other_parameters = static_cast<double>(model::parameter_count(config)) - s.parameters();
  return s;
}

}  // namespace esp::plan
