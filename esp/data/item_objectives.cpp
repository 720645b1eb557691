// Objectives over items: text classification, sequence pairs, and the synthetic classification set.
#include <algorithm>

#include "esp/base/check.h"
#include "esp/data/objective.h"
#include "esp/data/random_purpose.h"
#include "esp/data/row_writer.h"

namespace esp::data {
namespace {

class LabelledTexts : public Classification {
 public:
  LabelledTexts(const Items& items, const ClassificationOptions& options)
      : items_(items), options_(options), sampler_(items.size(), options.seed, options.order) {}

  BatchShape shape() const override { return {options_.T, 0, 1}; }
  uint64_t samples_per_epoch() const override { return items_.size(); }
  int32_t num_classes() const override { return items_.num_classes; }
  void fill(uint64_t sample, int64_t row, Batch& batch) const override { fill_item(sampler_.item(sample), row, batch); }

  void fill_item(uint64_t index, int64_t row, Batch& batch) const override {
    Items::Item item = items_[index];
    size_t room = static_cast<size_t>(options_.T) - (options_.cls ? 1 : 0) - (options_.sep ? 1 : 0);
    RowWriter writer(batch_row(batch.inputs, row, options_.T));
    if (options_.cls) writer.put(*options_.cls);
    writer.put(item.text.first(std::min(room, item.text.size())));
    if (options_.sep) writer.put(*options_.sep);
    batch.lengths[static_cast<size_t>(row)] = writer.finish(options_.pad);
    batch.targets[static_cast<size_t>(row)] = item.label;
    ++batch.counted;
  }

 private:
  const Items& items_;
  ClassificationOptions options_;
  ItemSampler sampler_;
};

class SyntheticClassification : public Classification {
 public:
  explicit SyntheticClassification(const SyntheticOptions& options)
      : options_(options), sampler_(options.num_items, options.seed, options.order) {}

  BatchShape shape() const override { return {options_.T, 0, 1}; }
  uint64_t samples_per_epoch() const override { return options_.num_items; }
  int32_t num_classes() const override { return 2; }
  void fill(uint64_t sample, int64_t row, Batch& batch) const override { fill_item(sampler_.item(sample), row, batch); }

  void fill_item(uint64_t item, int64_t row, Batch& batch) const override {
    uint64_t key = item * static_cast<uint64_t>(options_.T);
    for (int32_t& id : batch_row(batch.inputs, row, options_.T))
      id = static_cast<int32_t>(
          uniform_below(static_cast<uint64_t>(options_.vocab), options_.seed, RandomPurpose::synthetic_id, key++));
    batch.lengths[static_cast<size_t>(row)] = static_cast<int32_t>(options_.T);
    batch.targets[static_cast<size_t>(row)] = 0;
    ++batch.counted;
  }

 private:
  SyntheticOptions options_;
  ItemSampler sampler_;
};

class Pairs : public Objective {
 public:
  Pairs(const Items& items, const PairOptions& options)
      : items_(items), options_(options), sampler_(items.size(), options.seed, options.order) {}

  BatchShape shape() const override { return {options_.T, options_.T_decoder, options_.T_decoder}; }
  uint64_t samples_per_epoch() const override { return items_.size(); }

  void fill(uint64_t sample, int64_t row, Batch& batch) const override {
    Items::Item item = items_[sampler_.item(sample)];
    std::span<int32_t> targets = batch_row(batch.targets, row, options_.T_decoder);
    batch.lengths[static_cast<size_t>(row)] = put(item.text, batch_row(batch.inputs, row, options_.T), options_.pad);
    int32_t said = put(item.target, targets, kIgnoreIndex);
    shift_right(targets, said, options_.decoder_start, options_.pad,
                batch_row(batch.decoder_inputs, row, options_.T_decoder));
    batch.decoder_lengths[static_cast<size_t>(row)] = said;
    batch.counted += said;
  }

 private:
  // Truncates the text so that the row always ends with eos, if there is an eos id.
  int32_t put(std::span<const int32_t> ids, std::span<int32_t> row, int32_t padding) const {
    RowWriter writer(row);
    writer.put(ids.first(std::min(ids.size(), row.size() - (options_.eos ? 1 : 0))));
    if (options_.eos) writer.put(*options_.eos);
    return writer.finish(padding);
  }

  const Items& items_;
  PairOptions options_;
  ItemSampler sampler_;
};

}  // namespace

std::unique_ptr<Classification> make_classification(const Items& items, const ClassificationOptions& options) {
  ESP_CHECK(options.T >= (options.cls ? 1 : 0) + (options.sep ? 1 : 0) + 1);
  return std::make_unique<LabelledTexts>(items, options);
}

std::unique_ptr<Classification> make_synthetic_classification(const SyntheticOptions& options) {
  ESP_CHECK(options.T > 0 && options.vocab > 0);
  return std::make_unique<SyntheticClassification>(options);
}

std::unique_ptr<Objective> make_pairs(const Items& items, const PairOptions& options) {
  ESP_CHECK(options.T > 0 && options.T_decoder > 0);
  return std::make_unique<Pairs>(items, options);
}

}  // namespace esp::data
