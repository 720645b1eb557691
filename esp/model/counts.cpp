#include "esp/model/counts.h"

namespace esp::model {
namespace {

int64_t linear(int64_t in, int64_t out, bool bias) {
  return in * out + (bias ? out : 0);
}

int64_t norm(const ModelConfig& c) {
  return c.norm == kernel::NormKind::layer && c.bias ? 2 * c.dim : c.dim;
}

int64_t attention(const ModelConfig& c) {
  const int64_t kv = c.kv_heads_or_all() * c.head_dim();
  return linear(c.dim, c.dim, c.bias) + 2 * linear(c.dim, kv, c.bias) + linear(c.dim, c.dim, c.bias);
}

int64_t perceptron(const ModelConfig& c, int64_t ffn) {
  return (c.gated ? 2 : 1) * linear(c.dim, ffn, c.bias) + linear(ffn, c.dim, c.bias);
}

int64_t block(const ModelConfig& c) {
  return attention(c) + perceptron(c, c.ffn_or_default()) + 2 * norm(c);
}

// Parameters of the mixture-of-experts blocks in addition to the one MLP per block that `block` counts: further
// experts, router, shared expert. `seen` = true counts only the experts that one token uses, false counts all experts.
int64_t extra_expert_parameters(const ModelConfig& c, bool seen) {
  int64_t more = 0;
  for (int64_t i = 0; i < c.layers; ++i)
    if (c.has_experts(i))
      more += ((seen ? c.experts_per_token : c.experts) - 1) * perceptron(c, c.ffn_or_default()) + c.dim * c.experts +
              (c.shared_expert > 0 ? perceptron(c, c.shared_expert) : 0);
  return more;
}

int64_t positions(const ModelConfig& c) {
  return c.positions == Positions::learned ? c.seq_len * c.dim : 0;
}

int64_t bert_head(const ModelConfig& c) {
  const int64_t pooler = c.pooler ? linear(c.dim, c.dim, true) : 0;
  if (c.headless) return pooler;
  if (c.num_classes > 0) return pooler + linear(c.dim, c.num_classes, true);
  return linear(c.dim, c.dim, true) + norm(c) + c.vocab + (c.tie_embeddings ? 0 : c.vocab * c.dim);
}

// FLOPs per token of the attention core in all layers (scores and weighted values), forward and backward.
double attention_flops(const ModelConfig& c, int64_t seq_len) {
  const double each = static_cast<double>(c.layers) * static_cast<double>(c.dim) * static_cast<double>(seq_len);
  const double causal = 6, whole = 12;
  if (c.arch == "bert") return whole * each;
  if (c.arch == "t5") return (whole + causal + whole) * each;
  return causal * each;
}

}  // namespace

int64_t parameter_count(const ModelConfig& c) {
  const int64_t table = c.vocab * c.dim;
  if (c.arch == "bert")
    return table + positions(c) + c.type_vocab * c.dim + (c.embedding_norm ? norm(c) : 0) + c.layers * block(c) +
           (c.post_norm ? 0 : norm(c)) + bert_head(c);
  if (c.arch == "t5") {
    const int64_t decoder_block = block(c) + attention(c) + norm(c);
    return table + 2 * positions(c) + c.layers * (block(c) + decoder_block) + (c.post_norm ? 0 : 2 * norm(c));
  }
  return table + positions(c) + c.layers * block(c) + extra_expert_parameters(c, false) + norm(c) +
         (c.tie_embeddings ? 0 : table);
}

int64_t parameters_per_token(const ModelConfig& c) {
  return parameter_count(c) - extra_expert_parameters(c, false) + extra_expert_parameters(c, true);
}

double flops_per_token(const ModelConfig& c, int64_t seq_len) {
  return 6.0 * static_cast<double>(parameters_per_token(c)) + attention_flops(c, seq_len);
}

double recomputed_flops_per_token(const ModelConfig& c, int64_t seq_len, nn::RecomputeMode recompute) {
  if (recompute == nn::RecomputeMode::none) return 0;
  // Recomputation repeats the forward pass, which is a third of the FLOPs of a step.
  if (recompute == nn::RecomputeMode::selective) return attention_flops(c, seq_len) / 3;
  const double tables = 6.0 * static_cast<double>(c.vocab * c.dim) * (c.tie_embeddings ? 1 : 2);
  return (flops_per_token(c, seq_len) - tables) / 3;
}

double megatron_flops_per_token(const ModelConfig& c, int64_t seq_len) {
  const double L = static_cast<double>(c.layers), h = static_cast<double>(c.dim), s = static_cast<double>(seq_len);
  return 72 * L * h * h * (1 + s / (6 * h) + static_cast<double>(c.vocab) / (12 * L * h));
}

}  // namespace esp::model
