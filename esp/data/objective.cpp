#include "esp/data/objective.h"

#include <algorithm>

#include "esp/base/check.h"
#include "esp/data/row_writer.h"

namespace esp::data {
namespace {

class NextToken : public Objective {
 public:
  NextToken(const TokenSource& source, const NextTokenOptions& options)
      : source_(source),
        T_(options.T),
        sampler_(source.size(), {static_cast<uint64_t>(options.T), options.seed, options.order, options.shift}) {}

  BatchShape shape() const override { return {T_, 0, T_}; }
  uint64_t samples_per_epoch() const override { return sampler_.windows_per_epoch(); }

  void fill(uint64_t sample, int64_t row, Batch& batch) const override {
    auto [first, length] = sampler_.window(sample);
    std::span<int32_t> inputs = batch_row(batch.inputs, row, T_), targets = batch_row(batch.targets, row, T_);
    source_.read(first, inputs.first(length));
    std::copy(inputs.begin() + 1, inputs.begin() + static_cast<int64_t>(length), targets.begin());
    targets[length - 1] = source_.at(first + length);
    std::fill(inputs.begin() + static_cast<int64_t>(length), inputs.end(), 0);
    std::fill(targets.begin() + static_cast<int64_t>(length), targets.end(), kIgnoreIndex);
    batch.lengths[static_cast<size_t>(row)] = static_cast<int32_t>(length);
    batch.counted += static_cast<int64_t>(length);
  }

 private:
  const TokenSource& source_;
  int64_t T_;
  WindowSampler sampler_;
};

}  // namespace

void fill_batch(const Objective& objective, uint64_t first_sample, int64_t rows, Batch& batch) {
  batch.reshape(rows, objective.shape());
  batch.first_sample = first_sample;
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t sample = first_sample + static_cast<uint64_t>(row);
    batch.samples[static_cast<size_t>(row)] = sample;
    objective.fill(sample, row, batch);
  }
}

std::unique_ptr<Objective> make_next_token(const TokenSource& source, const NextTokenOptions& options) {
  ESP_CHECK(options.T > 0);
  return std::make_unique<NextToken>(source, options);
}

}  // namespace esp::data
