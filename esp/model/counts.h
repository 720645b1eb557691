// Parameter and FLOP counts, computed from the shape of a model without building it.
#pragma once

#include <cstdint>

#include "esp/model/config.h"
#include "esp/nn/forward_context.h"

namespace esp::model {

// Exact number of parameters, from the formulas of the architecture. Equal to parameters().count() of the built model.
int64_t parameter_count(const ModelConfig& config);
// Number of active parameters: counts only the experts to which one token is routed.
int64_t parameters_per_token(const ModelConfig& config);

// Model FLOPs of training per token, in sequences of length T; a multiply-add counts as two FLOPs: 6·N + a·L·dim·T.
//   N: active parameters, embeddings included.
//   a: 6 for causal attention (the lower triangle only), 12 for bidirectional attention.
//   t5: per target token, with a source of the same length. Each token passes through half of the model, so 6·N stands
//     for a source and a target token; a is 30 (encoder 12, decoder 6, cross-attention 12).
double flops_per_token(const ModelConfig& config, int64_t seq_len);

// FLOPs per token that recomputation adds: with `full` those of the forward pass of every block, with `selective` those
// of the forward pass of the attention core.
double recomputed_flops_per_token(const ModelConfig& config, int64_t seq_len, nn::RecomputeMode recompute);

// FLOPs per token by the formula of Narayanan et al. 2021: 72·L·h²·(1 + s/(6h) + V/(12Lh)). The formula counts the
// weight matrices of GPT and the whole attention matrix, including its masked half.
double megatron_flops_per_token(const ModelConfig& config, int64_t seq_len);

}  // namespace esp::model
