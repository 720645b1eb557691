// How often each word occurs in a stream of text of any length, in bounded memory.
//
// Texts gather into batches; a batch is cut into slices, each slice is counted by one thread, and the counts are added
// shard by shard. Where the words no longer fit, the rarest are forgotten (lossy counting, Manku & Motwani 2002), after
// whole batches only. What is forgotten, and every count, therefore depends on the text alone and not on the threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "esp/data/tokenizer/split.h"

namespace esp::data {

class WordCounts {
 public:
  struct Options {
    SplitPattern pattern = SplitPattern::gpt2;
    int threads = 1;
    size_t max_words = size_t{4} << 20;
    size_t batch_bytes = size_t{32} << 20;
  };
  explicit WordCounts(const Options& options);
  ~WordCounts();

  // One text: no word goes on into the next.
  void add(std::string_view text);
  // Everything counted so far, in the order of the bytes.
  std::vector<std::pair<std::string, int64_t>> finish();

  uint64_t bytes() const { return bytes_; }
  uint64_t forgotten() const { return forgotten_; }  // occurrences of words that no longer fitted

 private:
  class Map;
  void count_batch();
  void forget_rare();

  Options options_;
  std::vector<std::string> batch_;
  size_t batch_bytes_ = 0;
  uint64_t bytes_ = 0, forgotten_ = 0;
  std::vector<std::unique_ptr<Map>> shards_;
};

}  // namespace esp::data
