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
  std::string arch = "gpt";         // gpt | llama | bert | t5: rows of models.cpp
  int64_t layers = 0;               // t5: of the encoder and of the decoder each
  int64_t heads = 0, kv_heads = 0;  // kv_heads 0: heads
  int64_t dim = 0;
  int64_t ffn = 0;  // 0: 4·dim
  int64_t vocab = 0;
  int64_t seq_len = 0;  // positions
  double dropout = 0;
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false;  // SwiGLU instead of activation(x·W1)
  kernel::NormKind norm = kernel::NormKind::layer;
  bool post_norm = false;
  double norm_eps = 1e-5;
  Positions positions = Positions::learned;
  kernel::RotaryAngles rope;
  bool bias = true;
  bool tie_embeddings = true;
  double init_std = 0.02;
  // Mixture of experts (gpt, llama): the feed-forward of every expert_every-th block has `experts` of width ffn.
  int64_t experts = 0;  // 0: none
  int64_t experts_per_token = 2;
  int64_t expert_every = 1;    // every n-th block has experts
  double expert_capacity = 0;  // times an equal share of a sequence's tokens; 0: no token is dropped
  double expert_aux = 0.01;    // weight of the balance loss
  double expert_z = 0;         // weight of the z-loss
  int64_t shared_expert = 0;   // width of a shared expert that processes every token; 0: none
  // BERT
  int64_t type_vocab = 0;       // segment embeddings
  bool embedding_norm = true;   // norm (and dropout) after the sum of the embeddings
  bool zero_positions = false;  // learned positions begin at zero
  int64_t num_classes = 0;      // > 0: a classification head on the first token instead of the masked-token head
  bool pooler = false;          // tanh layer on the first token before the classifier
  bool headless = false;        // hidden states only: no loss, no logits

  int64_t head_dim() const { return dim / heads; }
  int64_t kv_heads_or_all() const { return kv_heads ? kv_heads : heads; }
  int64_t ffn_or_default() const { return ffn ? ffn : 4 * dim; }
  bool has_experts(int64_t block) const { return experts > 0 && block % expert_every == expert_every - 1; }

  void check() const;  // UsageError: got X; expected Y
  // Checks that sizes are within bounds that can be multiplied. Part of check(), which needs the complete shape.
  void check_sizes() const;

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace esp::model
