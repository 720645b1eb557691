// Counts words in a text stream of any length, in bounded memory.
//
// Texts are collected into batches. A batch is cut into slices, and each slice is counted by one thread. Words are
// divided into shards by hash; one thread adds the counts of a shard. If there are too many words, the rarest are
// dropped (lossy counting, Manku & Motwani 2002), only after complete batches. The result therefore depends only on the
// text, not on the number of threads.
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

  // Adds one text. A word never continues into the next text.
  void add(std::string_view text);
  // Returns all words and counts, sorted by bytes.
  std::vector<std::pair<std::string, int64_t>> finish();

  uint64_t bytes() const { return bytes_; }
  uint64_t dropped() const { return dropped_; }  // total count of dropped words

 private:
  class Map;
  void count_batch();
  void drop_rare();

  Options options_;
  std::vector<std::string> batch_;
  size_t batch_bytes_ = 0;
  uint64_t bytes_ = 0, dropped_ = 0;
  std::vector<std::unique_ptr<Map>> shards_;
};

}  // namespace esp::data
