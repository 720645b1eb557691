#include "esp/data/sampler.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/data/draw.h"
#include "esp/data/permutation.h"

namespace esp::data {
namespace {

struct OrderRow {
  std::string_view name;
  Order order;
};
constexpr OrderRow kOrders[] = {
    {"shuffled", Order::shuffled}, {"sequential", Order::sequential}, {"random", Order::random}};

uint64_t windows_in(uint64_t num_tokens, const WindowSampler::Options& options) {
  const uint64_t length = options.length;
  if (options.order == Order::sequential) return (num_tokens - 1 + length - 1) / length;
  uint64_t all = (num_tokens - 1) / length;
  // A shifted epoch gives up one window for room to shift in; a single window has none to give.
  return options.order == Order::shuffled && options.shift && all > 1 ? (num_tokens - length) / length : all;
}

}  // namespace

Order parse_order(std::string_view name) {
  return find_row("sample order", kOrders, name).order;
}

WindowSampler::WindowSampler(uint64_t num_tokens, const Options& options) : options_(options), num_tokens_(num_tokens) {
  ESP_CHECK(options.length > 0);
  uint64_t least = options.order == Order::sequential ? 2 : options.length + 1;
  if (num_tokens < least)
    throw UsageError(fmt::format("the data have {} tokens, one sample needs {}; give more data or a shorter sequence",
                                 num_tokens, least));
  windows_ = windows_in(num_tokens, options);
}

WindowSampler::Window WindowSampler::window(uint64_t sample) const {
  const uint64_t length = options_.length;
  if (options_.order == Order::random)
    return {draw_below(num_tokens_ - length, options_.seed, Draw::window_offset, sample), length};
  const uint64_t epoch = sample / windows_, place = sample % windows_;
  if (options_.order == Order::sequential) return {place * length, std::min(length, num_tokens_ - 1 - place * length)};
  // Windows end at windows * length + 1; what is left over is the room an epoch may shift in.
  uint64_t room = num_tokens_ - 1 - windows_ * length;
  uint64_t shift = options_.shift ? draw_below(room + 1, options_.seed, Draw::epoch_shift, epoch) : 0;
  return {shift + Permutation(windows_, options_.seed, epoch)(place) * length, length};
}

ItemSampler::ItemSampler(uint64_t num_items, uint64_t seed, Order order)
    : num_items_(num_items), seed_(seed), order_(order) {
  if (num_items == 0) throw UsageError("the data set has no items");
}

uint64_t ItemSampler::item(uint64_t sample) const {
  switch (order_) {
    case Order::shuffled:
      return Permutation(num_items_, seed_, sample / num_items_)(sample % num_items_);
    case Order::sequential:
      return sample % num_items_;
    case Order::random:
      return draw_below(num_items_, seed_, Draw::item, sample);
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

uint64_t DistributedSampler::item(uint64_t epoch, uint64_t place) const {
  ESP_CHECK(place < items_per_rank());
  return Permutation(num_items_, seed_ + epoch, 0)((place * world_ + rank_) % num_items_);
}

void DistributedSampler::batch(uint64_t epoch, uint64_t step, std::vector<uint64_t>& items) const {
  ESP_CHECK(step < steps_per_epoch());
  items.clear();
  uint64_t end = std::min(items_per_rank(), (step + 1) * batch_);
  for (uint64_t place = step * batch_; place < end; ++place) items.push_back(item(epoch, place));
}

}  // namespace esp::data
