// The shape of a model, as in the run file's [model] section. Plain data; `check` validates it.
#pragma once

#include <cstdint>
#include <string>

#include "esp/kernel/activation.h"
#include "esp/kernel/norm.h"
#include "esp/kernel/rotary_angles.h"

namespace esp::model {

enum class Positions : uint8_t { learned, rotary, none };

struct ModelConfig {
  std::string arch = "gpt";         // a row of models.cpp: gpt | llama | bert | t5
  int64_t layers = 0;               // t5: number of encoder layers; the decoder has the same number
  int64_t heads = 0, kv_heads = 0;  // kv_heads < heads: grouped-query attention; 0: equal to heads
  int64_t dim = 0;
  int64_t ffn = 0;  // 0: 4 · dim
  int64_t vocab = 0;
  int64_t seq_len = 0;  // maximum number of positions
  double dropout = 0;
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;  // true: gated MLP (SwiGLU); false: activation(x·W1)
  kernel::NormKind norm = kernel::NormKind::layer;
  bool post_norm = false;
  double norm_eps = 1e-5;
  Positions positions = Positions::learned;
  kernel::RotaryAngles rope;
  bool bias = true;
  bool tie_embeddings = true;
  double init_std = 0.02;
  // Mixture of experts (gpt, llama): in every expert_every-th block, `experts` MLPs of width ffn replace the dense MLP.
  int64_t experts = 0;  // 0: none
  int64_t experts_per_token = 2;
  int64_t expert_every = 1;  // 1: every block has experts; 2: every second block; …
  // Capacity factor: maximum number of tokens per expert, divided by the mean number of tokens per expert, in a
  // sequence. 0: no limit, so no token is dropped.
  double expert_capacity = 0;
  double expert_aux = 0.01;   // weight of the load-balancing loss
  double expert_z = 0;        // weight of the router z-loss
  int64_t shared_expert = 0;  // width of a shared expert that processes every token; 0: none
  // BERT
  int64_t type_vocab = 0;       // number of segment embeddings
  bool embedding_norm = true;   // norm (and dropout) after the sum of the embeddings
  bool zero_positions = false;  // learned positions are initialised to zero
  int64_t num_classes = 0;      // > 0: a classification head on the first token instead of the masked-token head
  bool pooler = false;          // tanh layer on the first token before the classifier
  bool headless = false;        // outputs hidden states only: no loss, no logits

  int64_t head_dim() const { return dim / heads; }
  int64_t kv_heads_or_all() const { return kv_heads ? kv_heads : heads; }
  int64_t ffn_or_default() const { return ffn ? ffn : 4 * dim; }
  bool has_experts(int64_t block) const { return experts > 0 && block % expert_every == expert_every - 1; }

  void check() const;  // throws UsageError for invalid values
  // The part of check() that ensures that products of the sizes do not overflow. check() also requires a complete
  // shape.
  void check_sizes() const;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace esp::model
