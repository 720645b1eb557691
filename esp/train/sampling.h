// Choosing the next token from logits: greedy, temperature, top-k, nucleus. A choice is a function of the logits and
// (seed, position) alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "esp/train/loaded.h"

namespace esp::train {

struct SamplingOptions {
  double temperature = 1;  // 0: the likeliest, ties to the smaller id
  int64_t top_k = 0;       // 0: all
  double top_p = 1;        // the fewest likeliest whose probabilities reach it
  uint64_t seed = 1;
};

int32_t choose_token(std::span<const double> logits, const SamplingOptions& options, uint64_t position);

// Extends `prompt` by up to `count` tokens, calling `emit` for each; stops at an id of `end_ids`, or when emit
// returns false. Longer texts than the model's context go on from its last half. An encoder–decoder reads the prompt
// and says an answer of up to its context. Returns the new tokens.
std::vector<int32_t> generate(LoadedModel& loaded, std::vector<int32_t> prompt, int64_t count,
                              const SamplingOptions& options, const std::function<bool(int32_t)>& emit);

// Mean and per-token losses of a text under the model, in windows of its context. What is predicted is what the model
// was trained for: each next token, or (masked_token, span_corruption; whole windows) those that were hidden.
// UsageError for models of pairs and classes.
struct TextLoss {
  double loss = 0;
  std::vector<double> token_losses;  // of each predicted token
};
TextLoss text_loss(LoadedModel& loaded, std::span<const int32_t> tokens);

}  // namespace esp::train
