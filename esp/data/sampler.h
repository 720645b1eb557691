// Which part of the data sample i is: a pure function of (seed, i).
//
// i is the global sample index: samples seen by all ranks since the run began. Nothing depends on the batch, the number
// of ranks or where a run was interrupted; the whole state of the data order is that one integer, and asking for sample
// 10^9 costs what asking for sample 0 costs. Samplers are small values; any thread may ask.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace esp::data {

enum class Order {
  shuffled,    // each epoch a fresh permutation; within an epoch nothing repeats, nothing is skipped
  sequential,  // as stored; for evaluation
  random,      // independent uniform draws; no epochs
};
Order parse_order(std::string_view name);  // UsageError lists the known names

// Windows of length + 1 tokens: inputs are the first `length`, targets the last. Windows of an epoch share no target.
class WindowSampler {
 public:
  struct Options {
    uint64_t length = 0;
    uint64_t seed = 0;
    Order order = Order::shuffled;
    bool shift = false;  // shuffled: each epoch cuts at an offset of its own, at the price of one window
  };
  struct Window {
    uint64_t first;   // token index of its first input
    uint64_t length;  // inputs in it; less than Options::length only at the end of a sequential pass
  };

  // UsageError when the data do not fill one window (one token and a target, for a sequential order).
  WindowSampler(uint64_t num_tokens, const Options& options);

  Window window(uint64_t sample) const;
  uint64_t windows_per_epoch() const { return windows_; }
  uint64_t epoch_of(uint64_t sample) const { return sample / windows_; }
  const Options& options() const { return options_; }

 private:
  Options options_;
  uint64_t num_tokens_, windows_;
};

// The same for data made of items: sample to item.
class ItemSampler {
 public:
  ItemSampler(uint64_t num_items, uint64_t seed, Order order);
  uint64_t item(uint64_t sample) const;
  uint64_t num_items() const { return num_items_; }

 private:
  uint64_t num_items_, seed_;
  Order order_;
};

// Items dealt to ranks as PyTorch's DistributedSampler deals them: a permutation keyed by seed + epoch, padded by
// wrap-around to a multiple of the ranks; rank r takes places r, r + N, …. The last batch of an epoch may be partial.
class DistributedSampler {
 public:
  DistributedSampler(uint64_t num_items, int world, int rank, uint64_t batch, uint64_t seed);

  uint64_t items_per_rank() const;                      // ceil(items / N)
  uint64_t steps_per_epoch() const;                     // ceil(items_per_rank / batch)
  uint64_t item(uint64_t epoch, uint64_t place) const;  // place < items_per_rank
  // Items of one step into `items`, which keeps its memory.
  void batch(uint64_t epoch, uint64_t step, std::vector<uint64_t>& items) const;

 private:
  uint64_t num_items_, world_, rank_, batch_, seed_;
};

}  // namespace esp::data
