// Trains a byte-level BPE (Sennrich et al. 2016): repeatedly merges the most frequent pair of neighbours into a token.
//
// The result depends only on the text and the options, not on the number of threads: counts are exact sums, and equally
// frequent pairs are ordered by their ids. Ids: special tokens, then the 256 bytes in the order of their GPT-2
// characters, then merges in order. `tokenizers` numbers them the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "esp/data/inputs.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/split.h"
#include "esp/data/tokenizer/word_counts.h"

namespace esp::data {

struct BpeTrainOptions {
  int32_t vocab_size = 32000;  // including special tokens and bytes
  SplitPattern pattern = SplitPattern::gpt2;
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t min_count = 2;  // pairs that occur less often are not merged
  int threads = 1;
  size_t max_words = size_t{4} << 20;  // maximum number of distinct words in memory
};

class BpeTrainer {
 public:
  // Throws UsageError if vocab_size is less than 256 bytes + special tokens.
  explicit BpeTrainer(const BpeTrainOptions& options);

  void add(std::string_view text);  // adds one complete text
  // Adds text files, which are read in chunks, and record files, of which only the text at `text_key` is used. Throws
  // IoError.
  void add_inputs(const std::vector<Input>& inputs, const std::string& text_key = "text");
  // Calls progress(vocabulary size) during training, on this thread.
  std::unique_ptr<ByteBpe> train(const std::function<void(int32_t)>& progress = {});

  uint64_t bytes() const { return counts_.bytes(); }
  uint64_t dropped_words() const { return counts_.dropped(); }

 private:
  BpeTrainOptions options_;
  WordCounts counts_;
};

}  // namespace esp::data
