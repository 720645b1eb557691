// Training objectives: how a sample becomes model inputs and targets. An objective is a function from the global sample
// index to one row of a batch. Its random choices depend only on (seed, sample index), so a row is the same on any
// rank, in any batch and after any restart.
//
// An objective references its source, which must outlive it. fill() is const, writes only its row, and allocates
// nothing.
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
  // Samples in one pass over the data.
  virtual uint64_t samples_per_epoch() const = 0;
  // Writes row `row` of a batch of shape() and adds the number of its targets to batch.counted.
  virtual void fill(uint64_t sample, int64_t row, Batch& batch) const = 0;
};

// Resizes `batch` to `rows` rows and fills them with samples first_sample, first_sample + 1, …
void fill_batch(const Objective& objective, uint64_t first_sample, int64_t rows, Batch& batch);

// Next-token prediction: inputs t0 … t(T-1), targets t1 … tT.
struct NextTokenOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
  bool shift = false;
};
std::unique_ptr<Objective> make_next_token(const TokenSource& source, const NextTokenOptions& options);

// Masked language modelling as in BERT (Devlin et al. 2018). A share `rate` of the positions is predicted: 80 % of
// these are replaced by [MASK], 10 % by a random id, 10 % stay unchanged. [CLS] and [SEP] enclose the text if their
// ids are given. At least one position per row is predicted.
struct MaskedTokenOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
  bool shift = false;
  double rate = 0.15, mask_share = 0.8, random_share = 0.1;
  int32_t vocab = 0;                                    // upper bound of random ids
  std::optional<int32_t> mask = {};                     // required
  std::optional<int32_t> cls = {}, sep = {}, pad = {};  // pad fills short rows; 0 if absent
};
std::unique_ptr<Objective> make_masked_token(const TokenSource& source, const MaskedTokenOptions& options);

// Span corruption of plain text as in T5 (Raffel et al. 2019). Spans of about `mean_span` tokens are removed from the
// encoder row, in total a share `rate` of the tokens. A sentinel id replaces each span. The decoder predicts every
// sentinel followed by its span. Sentinel ids are vocab - 1, vocab - 2, …, and must not occur in the text.
struct SpanCorruptionOptions {
  int64_t T = 0;  // encoder row length; the decoder row length follows from it
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
  double rate = 0.15, mean_span = 3.0;
  int32_t vocab = 0;       // vocabulary of the model, including sentinels
  int32_t text_vocab = 0;  // vocabulary of the text
  std::optional<int32_t> eos = {};
  int32_t pad = 0, decoder_start = 0;
};
std::unique_ptr<Objective> make_span_corruption(const TokenSource& source, const SpanCorruptionOptions& options);

// Sequence pairs: encoder rows from the text, decoder rows from the target of an item, truncated to T and T_decoder.
struct PairOptions {
  int64_t T = 0, T_decoder = 0;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
  std::optional<int32_t> eos = {};
  int32_t pad = 0, decoder_start = 0;
};
std::unique_ptr<Objective> make_pairs(const Items& items, const PairOptions& options);

// Classification: one label per text. The row is [CLS] text [SEP] if those ids are given, truncated to T.
struct ClassificationOptions {
  int64_t T = 0;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
  std::optional<int32_t> cls = {}, sep = {};
  int32_t pad = 0;
};
class Classification : public Objective {
 public:
  // Fills a row from the given item, for callers that use their own sampler (DistributedSampler).
  virtual void fill_item(uint64_t item, int64_t row, Batch& batch) const = 0;
  virtual int32_t num_classes() const = 0;
};
std::unique_ptr<Classification> make_classification(const Items& items, const ClassificationOptions& options);

// The data set of the lecture example: `num_items` rows of T uniform random ids, without padding, all of class 0.
struct SyntheticOptions {
  uint64_t num_items = 10000;
  int64_t T = 128;
  int32_t vocab = 30522;
  uint64_t seed = 0;
  SampleOrder order = SampleOrder::shuffled;
};
std::unique_ptr<Classification> make_synthetic_classification(const SyntheticOptions& options);

}  // namespace esp::data
