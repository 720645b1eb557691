// Span corruption as in T5. A window of L tokens is cut into k text spans and k noise spans, alternating, text first.
// All ways to cut are equally likely (selection sampling, Knuth 3.4.2 S, which stores nothing). Encoder: each text
// span, then its sentinel. Decoder: each sentinel, then its noise span. Both end with eos if there is one.
#include <cmath>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/data/objective.h"
#include "esp/data/random_purpose.h"
#include "esp/data/row_writer.h"

namespace esp::data {
namespace {

struct Counts {
  uint64_t noise, spans;
};

Counts counts(uint64_t length, const SpanCorruptionOptions& options) {
  if (length < 2) return {0, 0};
  auto whole = [](double x) { return static_cast<uint64_t>(std::llround(x)); };
  uint64_t noise = std::clamp<uint64_t>(whole(static_cast<double>(length) * options.rate), 1, length - 1);
  uint64_t spans =
      std::clamp<uint64_t>(whole(static_cast<double>(noise) / options.mean_span), 1, std::min(noise, length - noise));
  return {noise, spans};
}

uint64_t encoder_length(uint64_t length, const SpanCorruptionOptions& options) {
  Counts c = counts(length, options);
  return length - c.noise + c.spans + (options.eos ? 1 : 0);
}

// Longest window that fits into T ids after corruption.
uint64_t window_length(const SpanCorruptionOptions& options) {
  uint64_t length = 2;
  while (encoder_length(length + 1, options) <= static_cast<uint64_t>(options.T)) ++length;
  if (encoder_length(length, options) > static_cast<uint64_t>(options.T))
    throw UsageError(fmt::format(
        "span corruption: an encoder row of {} ids is too short for a span. Use a longer sequence", options.T));
  return length;
}

// Generates the lengths of `pieces` non-empty spans with `total` tokens in sum.
class SpanSplitter {
 public:
  SpanSplitter(uint64_t total, uint64_t pieces, uint64_t seed, RandomPurpose purpose, uint64_t key)
      : boundaries_(total - 1), cuts_(pieces - 1), seed_(seed), purpose_(purpose), key_(key) {}

  uint64_t next() {
    uint64_t length = 1;
    for (; boundaries_ > 0; ++length) {
      bool cut = uniform_below(boundaries_--, seed_, purpose_, key_++) < cuts_;
      if (!cut) continue;
      --cuts_;
      break;
    }
    return length;
  }

 private:
  uint64_t boundaries_, cuts_, seed_;
  RandomPurpose purpose_;
  uint64_t key_;
};

class SpanCorruption : public Objective {
 public:
  SpanCorruption(const TokenSource& source, const SpanCorruptionOptions& options)
      : source_(source),
        options_(options),
        length_(window_length(options)),
        sampler_(source.size(), {length_, options.seed, options.order, false}) {
    Counts most = counts(length_, options);
    T_decoder_ = static_cast<int64_t>(most.noise + most.spans + (options.eos ? 1 : 0));
    if (options.vocab - options.text_vocab < static_cast<int64_t>(most.spans))
      throw UsageError(fmt::format(
          "span corruption with rows of {} ids needs {} sentinels above the {} ids of the text; the vocabulary of "
          "{} has room for {}. Set model.vocab = {} or more",
          options.T, most.spans, options.text_vocab, options.vocab, std::max(0, options.vocab - options.text_vocab),
          options.text_vocab + static_cast<int64_t>(most.spans)));
  }

  BatchShape shape() const override { return {options_.T, T_decoder_, T_decoder_}; }
  uint64_t samples_per_epoch() const override { return sampler_.windows_per_epoch(); }

  void fill(uint64_t sample, int64_t row, Batch& batch) const override {
    auto [first, length] = sampler_.window(sample);
    RowWriter encoder(batch_row(batch.inputs, row, options_.T)), decoder(batch_row(batch.targets, row, T_decoder_));
    Counts c = counts(length, options_);
    if (c.spans == 0) source_.read(first, encoder.take(length));
    const uint64_t key = sample * length_;
    SpanSplitter text(length - c.noise, std::max<uint64_t>(c.spans, 1), options_.seed, RandomPurpose::span_text, key);
    SpanSplitter noise(std::max<uint64_t>(c.noise, 1), std::max<uint64_t>(c.spans, 1), options_.seed,
                       RandomPurpose::span_noise, key);
    for (uint64_t span = 0; span < c.spans; ++span) {
      const int32_t sentinel = options_.vocab - 1 - static_cast<int32_t>(span);
      uint64_t kept = text.next(), taken = noise.next();
      source_.read(first, encoder.take(kept));
      encoder.put(sentinel);
      decoder.put(sentinel);
      source_.read(first + kept, decoder.take(taken));
      first += kept + taken;
    }
    if (options_.eos) {
      encoder.put(*options_.eos);
      decoder.put(*options_.eos);
    }
    batch.lengths[static_cast<size_t>(row)] = encoder.finish(options_.pad);
    int32_t said = decoder.finish(kIgnoreIndex);
    shift_right(batch_row(batch.targets, row, T_decoder_), said, options_.decoder_start, options_.pad,
                batch_row(batch.decoder_inputs, row, T_decoder_));
    batch.decoder_lengths[static_cast<size_t>(row)] = said;
    batch.counted += said;
  }

 private:
  const TokenSource& source_;
  SpanCorruptionOptions options_;
  uint64_t length_;
  int64_t T_decoder_ = 0;
  WindowSampler sampler_;
};

}  // namespace

std::unique_ptr<Objective> make_span_corruption(const TokenSource& source, const SpanCorruptionOptions& options) {
  ESP_CHECK(options.T > 0 && options.rate > 0 && options.rate < 1 && options.mean_span >= 1 && options.text_vocab > 0);
  return std::make_unique<SpanCorruption>(source, options);
}

}  // namespace esp::data
