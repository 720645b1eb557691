// BERT's masked tokens. Position p of sample i draws three times: is it chosen, what is shown, and which id when that
// is random; each draw is keyed by i·T + p.
#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/draw.h"
#include "esp/data/objective.h"
#include "esp/data/rows.h"

namespace esp::data {
namespace {

uint64_t text_length(const MaskedTokenOptions& options) {
  int64_t around = (options.cls ? 1 : 0) + (options.sep ? 1 : 0);
  if (options.T <= around) throw UsageError(fmt::format("a row of {} ids has no room for text", options.T));
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
    std::span<int32_t> inputs = row_of(batch.inputs, row, options_.T), targets = row_of(batch.targets, row, options_.T);
    RowWriter writer(inputs);
    if (options_.cls) writer.put(*options_.cls);
    const size_t text_at = options_.cls ? 1 : 0;
    source_.read(first, writer.take(length));
    if (options_.sep) writer.put(*options_.sep);
    batch.lengths[static_cast<size_t>(row)] = writer.finish(options_.pad.value_or(0));
    std::fill(targets.begin(), targets.end(), kIgnored);

    const uint64_t key = sample * static_cast<uint64_t>(options_.T);
    int64_t chosen = 0;
    for (size_t p = text_at; p < text_at + length; ++p) {
      if (draw_unit(options_.seed, Draw::mask_choice, key + p) >= options_.rate) continue;
      hide(key + p, inputs[p], targets[p]);
      ++chosen;
    }
    if (chosen == 0) {  // a row without a target would teach nothing and, alone in its batch, divide by zero
      size_t p = text_at + draw_below(length, options_.seed, Draw::mask_choice, key);
      hide(key + p, inputs[p], targets[p]);
      chosen = 1;
    }
    batch.counted += chosen;
  }

 private:
  void hide(uint64_t key, int32_t& input, int32_t& target) const {
    target = input;
    double kind = draw_unit(options_.seed, Draw::mask_kind, key);
    if (kind < options_.mask_share) {
      input = *options_.mask;
    } else if (kind < options_.mask_share + options_.random_share) {
      input =
          static_cast<int32_t>(draw_below(static_cast<uint64_t>(options_.vocab), options_.seed, Draw::mask_id, key));
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
    throw UsageError("masked tokens need the id of [MASK], which the tokenizer does not have; give data.mask_id");
  return std::make_unique<MaskedToken>(source, options);
}

}  // namespace esp::data
