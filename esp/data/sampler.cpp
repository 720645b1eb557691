#include "esp/data/sampler.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/permutation.h"
#include "esp/data/random_purpose.h"

namespace esp::data {
namespace {

struct OrderRow {
  std::string_view name;
  SampleOrder order;
};
constexpr OrderRow kOrders[] = {
    {"shuffled", SampleOrder::shuffled}, {"sequential", SampleOrder::sequential}, {"random", SampleOrder::random}};

uint64_t windows_in(uint64_t num_tokens, const WindowSampler::Options& options) {
  const uint64_t length = options.length;
  if (options.order == SampleOrder::sequential) return (num_tokens - 1 + length - 1) / length;
  uint64_t all = (num_tokens - 1) / length;
  // A shifted epoch drops one window to make room for the shift; a single window cannot be dropped.
  return options.order == SampleOrder::shuffled && options.shift && all > 1 ? (num_tokens - length) / length : all;
}

}  // namespace

SampleOrder parse_sample_order(std::string_view name) {
  return find_row("sample order", kOrders, name).order;
}

WindowSampler::WindowSampler(uint64_t num_tokens, const Options& options) : options_(options), num_tokens_(num_tokens) {
  ESP_CHECK(options.length > 0);
  uint64_t least = options.order == SampleOrder::sequential ? 2 : options.length + 1;
  if (num_tokens < least)
    throw UsageError(fmt::format("the data has {} tokens; one sample needs {}. Use more data or a shorter sequence",
                                 num_tokens, least));
  windows_ = windows_in(num_tokens, options);
}

WindowSampler::Window WindowSampler::window(uint64_t sample) const {
  const uint64_t length = options_.length;
  if (options_.order == SampleOrder::random)
    return {uniform_below(num_tokens_ - length, options_.seed, RandomPurpose::window_offset, sample), length};
  const uint64_t epoch = sample / windows_, position = sample % windows_;
  if (options_.order == SampleOrder::sequential)
    return {position * length, std::min(length, num_tokens_ - 1 - position * length)};
  // Without a shift, the windows end at token windows * length + 1. The tokens after it are the room for the shift.
  uint64_t room = num_tokens_ - 1 - windows_ * length;
  uint64_t shift = options_.shift ? uniform_below(room + 1, options_.seed, RandomPurpose::epoch_shift, epoch) : 0;
  return {shift + Permutation(windows_, options_.seed, epoch)(position) * length, length};
}

ItemSampler::ItemSampler(uint64_t num_items, uint64_t seed, SampleOrder order)
    : num_items_(num_items), seed_(seed), order_(order) {
  if (num_items == 0) throw UsageError("the data set has no items");
}

uint64_t ItemSampler::item(uint64_t sample) const {
  switch (order_) {
    case SampleOrder::shuffled:
      return Permutation(num_items_, seed_, sample / num_items_)(sample % num_items_);
    case SampleOrder::sequential:
      return sample % num_items_;
    case SampleOrder::random:
      return uniform_below(num_items_, seed_, RandomPurpose::item, sample);
  }
  ESP_CHECK(false);
}

DistributedSampler::DistributedSampler(uint64_t num_items, int world, int rank, uint64_t batch, uint64_t seed)
    : num_items_(num_items),
      world_(static_cast<uint64_t>(world)),
      rank_(static_cast<uint64_t>(rank)),
      batch_(batch),
      seed_(seed) {
  ESP_CHECK(world > 0 && rank >= 0 && rank < world && batch > 0);
  if (num_items == 0) throw UsageError("the data set has no items");
}

uint64_t DistributedSampler::items_per_rank() const {
  return (num_items_ + world_ - 1) / world_;
}

uint64_t DistributedSampler::steps_per_epoch() const {
  return (items_per_rank() + batch_ - 1) / batch_;
}

uint64_t DistributedSampler::item(uint64_t epoch, uint64_t position) const {
  ESP_CHECK(position < items_per_rank());
  return Permutation(num_items_, seed_ + epoch, 0)((position * world_ + rank_) % num_items_);
}

void DistributedSampler::batch(uint64_t epoch, uint64_t step, std::vector<uint64_t>& items) const {
  ESP_CHECK(step < steps_per_epoch());
  items.clear();
  uint64_t end = std::min(items_per_rank(), (step + 1) * batch_);
  for (uint64_t position = step * batch_; position < end; ++position) items.push_back(item(epoch, position));
}

}  // namespace esp::data
