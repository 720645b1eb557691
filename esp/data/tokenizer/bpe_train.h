// Trains a byte-level BPE: the most frequent pair of neighbours becomes a token, again and again (Sennrich et al.
// 2016).
//
// The result depends on the text and the options, not on the number of threads: counts are exact sums, and among
// equally frequent pairs the one of lower ids is taken. Ids: special tokens, the 256 bytes in the order of their
// letters, then merges in order, which is how `tokenizers` numbers them.
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
  int32_t vocab_size = 32000;  // special tokens and bytes included
  SplitPattern pattern = SplitPattern::gpt2;
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t min_count = 2;  // a pair that occurs less often is not merged
  int threads = 1;
  size_t max_words = size_t{4} << 20;  // distinct words kept in memory
};

class BpeTrainer {
 public:
  // Throws UsageError where the vocabulary has no room for the bytes and the special tokens.
  explicit BpeTrainer(const BpeTrainOptions& options);

  void add(std::string_view text);  // one text, all of it
  // Files that hold text, read in pieces; of records, the text at `text_key`. IoError.
  void add_inputs(const std::vector<Input>& inputs, const std::string& text_key = "text");
  // `progress` hears the vocabulary as it grows, from this thread.
  std::unique_ptr<ByteBpe> train(const std::function<void(int32_t)>& progress = {});

  uint64_t bytes() const { return counts_.bytes(); }
  uint64_t forgotten_words() const { return counts_.forgotten(); }

 private:
  BpeTrainOptions options_;
  WordCounts counts_;
};

}  // namespace esp::data
