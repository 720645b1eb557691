// How large a model is and what it costs, from its shape alone: nothing is built.
#pragma once

#include <cstdint>

#include "esp/model/config.h"
#include "esp/nn/pass.h"

namespace esp::model {

// Exact, from the formulas of the architecture; equals parameters().count() of the built model.
int64_t parameter_count(const ModelConfig& config);
// Of those, what one token meets: of the experts the ones it is sent to.
int64_t parameters_per_token(const ModelConfig& config);

// Model FLOPs of training per token in sequences of length T (a multiply-add is two): 6·N + a·L·dim·T. N is all
// parameters a token meets, embeddings included; a is 6 for causal attention (what is below the diagonal), 12 where
// every token sees every token. For t5 per target token, with a source as long: each passes half of the model, and a is
// 30 (encoder 12, decoder 6, across 12).
double flops_per_token(const ModelConfig& config, int64_t seq_len);

// What is computed again besides: with `full` the forward pass of every block, with `selective` that of the attention
// between its projections.
double recomputed_flops_per_token(const ModelConfig& config, int64_t seq_len, nn::Recompute recompute);

// 72·L·h²·(1 + s/(6h) + V/(12Lh)) of Narayanan et al. 2021 per token: GPT's matrices with all of the attention counted.
double megatron_flops_per_token(const ModelConfig& config, int64_t seq_len);

}  // namespace esp::model
