// Samples the next token from logits: greedy, temperature, top-k, nucleus (top-p). The choice depends only on the
// logits, the seed and the position.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "esp/train/trained_model.h"

namespace esp::train {

struct SamplingOptions {
  double temperature = 1;  // 0: greedy; of several equal logits, the smallest id is chosen
  int64_t top_k = 0;       // 0: all tokens
  // samples only from the smallest set of most likely tokens with a total probability of at least top_p
  double top_p = 1;
  uint64_t seed = 1;
};

int32_t choose_token(std::span<const double> logits, const SamplingOptions& options, uint64_t position);

// Extends `prompt` by up to `count` tokens and calls `emit` for each. Stops at an id of `end_ids` or when `emit`
// returns false. If the text becomes longer than the context, generation continues from its last half. An
// encoder-decoder encodes the prompt and generates an answer that is at most as long as one context. Returns the new
// tokens.
std::vector<int32_t> generate(TrainedModel& loaded, std::vector<int32_t> prompt, int64_t count,
                              const SamplingOptions& options, const std::function<bool(int32_t)>& emit);

// Mean and per-token losses of a text, in windows of the model's context length. Only tokens that the training
// objective predicts have a loss: with next_token each next token; with masked_token and span_corruption the masked
// tokens, in whole windows only. UsageError for models trained on pairs or classes.
struct TextLoss {
  double loss = 0;
  std::vector<double> token_losses;  // one loss per predicted token
};
TextLoss text_loss(TrainedModel& loaded, std::span<const int32_t> tokens);

}  // namespace esp::train
