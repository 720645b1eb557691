// Frequent words become one token; rare words stay split into several tokens.
#include <gtest/gtest.h>

#include "esp/data/tokenizer/bpe_train.h"

namespace esp::data {
namespace {

TEST(BpeTrainer, MakesFrequentWordsSingleTokens) {
  BpeTrainOptions options;
  options.vocab_size = 256 + 1 + 60;
  BpeTrainer trainer(options);
  for (int i = 0; i < 200; ++i) trainer.add("one nation under the sky, visible to all the world\n");
  trainer.add("one nation, indivisible.\n");
  const auto tokenizer = trainer.train();
  const auto pieces = [&](const char* text) {
    std::vector<int32_t> ids;
    tokenizer->encode_ordinary(text, ids);
    EXPECT_EQ(tokenizer->decode(ids), text);
    return ids.size();
  };
  for (const char* word : {" the", " nation", " under", " visible"}) EXPECT_EQ(pieces(word), 1u) << word;
  EXPECT_GE(pieces(" indivisible"), 2u);
  EXPECT_GE(pieces("你好嗎"), 2u);  // not in the training text: single bytes
}

}  // namespace
}  // namespace esp::data
