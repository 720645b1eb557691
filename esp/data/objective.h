// Objectives: what a sample looks like to the model. Each is a function from the global sample index to one row of a
// batch; every random choice in it is keyed by (seed, sample index), so a row is the same on any rank, in any batch,
// after any restart.
//
// Objectives lend their source and must not outlive it. fill() is const, touches only its row, and allocates nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "esp/data/batch.h"
#include "esp/data/items.h"
#include "esp/data/sampler.h"
#include "esp/data/source.h"

namespace esp::data {

class Objective {
 public:
  virtual ~Objective() = default;
  virtual BatchShape shape() const = 0;
  // Samples of one pass over the data.
  virtual uint64_t samples_per_epoch() const = 0;
  // Writes row `row` of a batch of shape(), and adds to batch.counted what it asks to be predicted.
  virtual void fill(uint64_t sample, int64_t row, Batch& batch) const = 0;
};

// All rows of `batch`, made to hold `rows` samples first_sample, first_sample + 1, …
void fill_batch(const Objective& objective, uint64_t first_sample, int64_t rows, Batch& batch);

// Inputs t0 … t(T-1), targets t1 … tT.
struct NextTokenOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  Order order = Order::shuffled;
  bool shift = false;
};
std::unique_ptr<Objective> make_next_token(const TokenSource& source, const NextTokenOptions& options);

// BERT (Devlin et al. 2018): `rate` of the positions are to be predicted; of these 80 % show [MASK], 10 % a random id
// and 10 % themselves. [CLS] and [SEP] surround the text where their ids are given. At least one position is chosen.
struct MaskedTokenOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  Order order = Order::shuffled;
  bool shift = false;
  double rate = 0.15, mask_share = 0.8, random_share = 0.1;
  int32_t vocab = 0;                                    // random ids are below
  std::optional<int32_t> mask = {};                     // required
  std::optional<int32_t> cls = {}, sep = {}, pad = {};  // pad fills short rows, 0 where absent
};
std::unique_ptr<Objective> make_masked_token(const TokenSource& source, const MaskedTokenOptions& options);

// Span corruption (Raffel et al. 2019) of plain text: about `rate` of the tokens in spans of about `mean_span` are
// taken out of the encoder's row, a sentinel in the place of each, and the decoder says them back, each after its
// sentinel. Sentinels are vocab - 1, vocab - 2, …, and must not be ids of the text.
struct SpanCorruptionOptions {
  int64_t T = 0;  // encoder row; the decoder row follows from it
  uint64_t seed = 0;
  Order order = Order::shuffled;
  double rate = 0.15, mean_span = 3.0;
  int32_t vocab = 0;       // of the model, sentinels included
  int32_t text_vocab = 0;  // of the text
  std::optional<int32_t> eos = {};
  int32_t pad = 0, decoder_start = 0;
};
std::unique_ptr<Objective> make_span_corruption(const TokenSource& source, const SpanCorruptionOptions& options);

// Pairs of texts: encoder rows from `source`, decoder rows from `target`, cut to T and T_decoder.
struct PairOptions {
  int64_t T = 0, T_decoder = 0;
  uint64_t seed = 0;
  Order order = Order::shuffled;
  std::optional<int32_t> eos = {};
  int32_t pad = 0, decoder_start = 0;
};
std::unique_ptr<Objective> make_pairs(const Items& items, const PairOptions& options);

// One label per text. The row is [CLS] text [SEP] where those ids are given, cut to T.
struct ClassificationOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  Order order = Order::shuffled;
  std::optional<int32_t> cls = {}, sep = {};
  int32_t pad = 0;
};
class Classification : public Objective {
 public:
  // Fills from an item of the caller's choice, for a sampler of the caller's own (DistributedSampler).
  virtual void fill_item(uint64_t item, int64_t row, Batch& batch) const = 0;
  virtual int32_t num_classes() const = 0;
};
std::unique_ptr<Classification> make_classification(const Items& items, const ClassificationOptions& options);

// The data set of the lecture example: `num_items` rows of T uniform ids, all real, all of class 0.
struct SyntheticOptions {
  uint64_t num_items = 10000;
  int64_t T = 128;
  int32_t vocab = 30522;
  uint64_t seed = 0;
  Order order = Order::shuffled;
};
std::unique_ptr<Classification> make_synthetic_classification(const SyntheticOptions& options);

}  // namespace esp::data
