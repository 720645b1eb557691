// Maps sample i to a part of the data: a pure function of (seed, i).
//
// i is the global sample index: the number of samples that all ranks have consumed since the run began. The result
// depends neither on the batch size, nor on the number of ranks, nor on interruptions: this one integer is the whole
// state of the data order. Random access is O(1). Samplers are small values and thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace esp::data {

enum class SampleOrder {
  shuffled,    // a new permutation per epoch; an epoch visits every sample exactly once
  sequential,  // storage order, for evaluation
  random,      // independent uniform draws; no epochs
};
SampleOrder parse_sample_order(std::string_view name);  // throws a UsageError that lists the known names

// Windows of length + 1 tokens: the inputs are the first `length` tokens, the targets the last `length`. Windows of one
// epoch share no target.
class WindowSampler {
 public:
  struct Options {
    uint64_t length = 0;
    uint64_t seed = 0;
    SampleOrder order = SampleOrder::shuffled;
    bool shift = false;  // shuffled only: each epoch starts at a random offset, which costs one window
  };
  struct Window {
    uint64_t first;   // token index of the first input
    uint64_t length;  // number of inputs; less than Options::length only at the end of a sequential pass
  };

  // Throws UsageError if the data is shorter than one window (in sequential order: shorter than two tokens).
  WindowSampler(uint64_t num_tokens, const Options& options);

  Window window(uint64_t sample) const;
  uint64_t windows_per_epoch() const { return windows_; }
  uint64_t epoch_of(uint64_t sample) const { return sample / windows_; }
  const Options& options() const { return options_; }

 private:
  Options options_;
  uint64_t num_tokens_, windows_;
};

// Maps a sample to an item, for item data sets.
class ItemSampler {
 public:
  ItemSampler(uint64_t num_items, uint64_t seed, SampleOrder order);
  uint64_t item(uint64_t sample) const;
  uint64_t num_items() const { return num_items_; }

 private:
  uint64_t num_items_, seed_;
  SampleOrder order_;
};

// Assigns items to ranks as PyTorch's DistributedSampler does: a permutation keyed by seed + epoch, padded by
// wrap-around to a multiple of the number of ranks N. Rank r takes positions r, r + N, …. The last batch of an epoch
// may be partial.
class DistributedSampler {
 public:
  DistributedSampler(uint64_t num_items, int world, int rank, uint64_t batch, uint64_t seed);

  uint64_t items_per_rank() const;                         // ceil(items / N)
  uint64_t steps_per_epoch() const;                        // ceil(items_per_rank / batch)
  uint64_t item(uint64_t epoch, uint64_t position) const;  // position: index within the rank, < items_per_rank
  // Writes the items of one step into `items` and reuses its memory.
  void batch(uint64_t epoch, uint64_t step, std::vector<uint64_t>& items) const;

 private:
  uint64_t num_items_, world_, rank_, batch_, seed_;
};

}  // namespace esp::data
