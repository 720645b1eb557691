// Parameter and FLOP counts from the model's shape; nothing is built.
#pragma once

#include <cstdint>

#include "esp/model/config.h"
#include "esp/nn/forward_context.h"

namespace esp::model {

// Exact, from the formulas of the architecture; equals parameters().count() of the built model.
int64_t parameter_count(const ModelConfig& config);
// Parameters used per token: only the experts it is routed to.
int64_t parameters_per_token(const ModelConfig& config);

// Model FLOPs of training per token in sequences of length T (a multiply-add is two): 6·N + a·L·dim·T. N is the
// parameters used per token, embeddings included; a is 6 for causal attention (the lower triangle), 12 for
// bidirectional. For t5 per target token, with a source as long: each passes half of the model, and a is 30 (encoder
// 12, decoder 6, cross 12).
double flops_per_token(const ModelConfig& config, int64_t seq_len);

// Additional recomputed FLOPs: with `full` the forward pass of every block, with `selective` that of the attention
// core.
double recomputed_flops_per_token(const ModelConfig& config, int64_t seq_len, nn::RecomputeMode recompute);

// 72·L·h²·(1 + s/(6h) + V/(12Lh)) of Narayanan et al. 2021 per token: GPT's matrices with all of the attention counted.
double megatron_flops_per_token(const ModelConfig& config, int64_t seq_len);

}  // namespace esp::model
