// BERT's masked language modelling. Position p of sample i has three random numbers: they decide whether the token is
// predicted, how it is replaced, and by which random id. Each number is a function of the index i·T + p.
#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/objective.h"
#include "esp/data/random_purpose.h"
#include "esp/data/row_writer.h"

namespace esp::data {
namespace {

uint64_t text_length(const MaskedTokenOptions& options) {
  int64_t around = (options.cls ? 1 : 0) + (options.sep ? 1 : 0);
  if (options.T <= around)
    throw UsageError(fmt::format("masked tokens: got rows of {} ids; expected more than {}, for [CLS] and [SEP]",
                                 options.T, around));
  return static_cast<uint64_t>(options.T - around);
}

class MaskedToken : public Objective {
 public:
  MaskedToken(const TokenSource& source, const MaskedTokenOptions& options)
      : source_(source),
        options_(options),
        sampler_(source.size(), {text_length(options), options.seed, options.order, options.shift}) {}

  BatchShape shape() const override { return {options_.T, 0, options_.T}; }
  uint64_t samples_per_epoch() const override { return sampler_.windows_per_epoch(); }

  void fill(uint64_t sample, int64_t row, Batch& batch) const override {
    auto [first, length] = sampler_.window(sample);
    std::span<int32_t> inputs = batch_row(batch.inputs, row, options_.T),
                       targets = batch_row(batch.targets, row, options_.T);
    RowWriter writer(inputs);
    if (options_.cls) writer.put(*options_.cls);
    const size_t text_at = options_.cls ? 1 : 0;
    source_.read(first, writer.take(length));
    if (options_.sep) writer.put(*options_.sep);
    batch.lengths[static_cast<size_t>(row)] = writer.finish(options_.pad.value_or(0));
    std::fill(targets.begin(), targets.end(), kIgnoreIndex);

    const uint64_t key = sample * static_cast<uint64_t>(options_.T);
    int64_t chosen = 0;
    for (size_t p = text_at; p < text_at + length; ++p) {
      if (uniform_unit(options_.seed, RandomPurpose::mask_choice, key + p) >= options_.rate) continue;
      hide(key + p, inputs[p], targets[p]);
      ++chosen;
    }
    // a row without a target would have no gradient and, alone in its batch, divide the loss by zero
    if (chosen == 0) {
      size_t p = text_at + uniform_below(length, options_.seed, RandomPurpose::mask_choice, key);
      hide(key + p, inputs[p], targets[p]);
      chosen = 1;
    }
    batch.counted += chosen;
  }

 private:
  void hide(uint64_t key, int32_t& input, int32_t& target) const {
    target = input;
    double kind = uniform_unit(options_.seed, RandomPurpose::mask_kind, key);
    if (kind < options_.mask_share) {
      input = *options_.mask;
    } else if (kind < options_.mask_share + options_.random_share) {
      input = static_cast<int32_t>(
          uniform_below(static_cast<uint64_t>(options_.vocab), options_.seed, RandomPurpose::mask_id, key));
    }
  }

  const TokenSource& source_;
  MaskedTokenOptions options_;
  WindowSampler sampler_;
};

}  // namespace

std::unique_ptr<Objective> make_masked_token(const TokenSource& source, const MaskedTokenOptions& options) {
  ESP_CHECK(options.vocab > 0 && options.rate > 0 && options.rate <= 1 && options.mask_share >= 0 &&
            options.random_share >= 0 && options.mask_share + options.random_share <= 1);
  if (!options.mask)
    throw UsageError(
        "data.objective = masked_token: the tokenizer has no [MASK]; expected a tokenizer with it. Set data.tokenizer");
  return std::make_unique<MaskedToken>(source, options);
}

}  // namespace esp::data
