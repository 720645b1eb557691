#include "esp/data/tokenizer/split.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"

namespace esp::data {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(SplitPattern pattern, std::string_view text) {
  Pieces pieces;
  for_each_piece(pattern, text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Split, Gpt2KeepsSpaceBeforeWord) {
  EXPECT_EQ(split(SplitPattern::gpt2, "Hello world's 42nd  \n day"),
            (Pieces{"Hello", " world", "'s", " 42", "nd", "  \n", " day"}));
  EXPECT_EQ(split(SplitPattern::gpt2, "a'S  "), (Pieces{"a", "'", "S", "  "}));
}

TEST(Split, Llama3SplitsNumbersByThreeDigits) {
  EXPECT_EQ(split(SplitPattern::llama3, "x12345!\n\n y'LL"), (Pieces{"x", "123", "45", "!\n\n", " y", "'LL"}));
  EXPECT_EQ(split(SplitPattern::llama3, "a\n  "), (Pieces{"a", "\n", "  "}));
  EXPECT_EQ(split(SplitPattern::cl100k, "a\n  "), (Pieces{"a", "\n  "}));
  EXPECT_EQ(split(SplitPattern::qwen2, "a12"), (Pieces{"a", "1", "2"}));
}

TEST(Split, O200kStartsWordAtCapital) {
  EXPECT_EQ(split(SplitPattern::o200k, "helloWorld HTTPServer don't //x"),
            (Pieces{"hello", "World", " HTTPServer", " don't", " //", "x"}));
  // U* gives back only what W+ needs, here the last letter, which has no case.
  EXPECT_EQ(split(SplitPattern::o200k, "A\u3042B"), (Pieces{"A\u3042", "B"}));
}

TEST(Split, CaseInsensitivePatternMatchesLongSCharacter) {
  EXPECT_EQ(split(SplitPattern::llama3, "a'\u017F"), (Pieces{"a", "'\u017F"}));
  EXPECT_EQ(split(SplitPattern::gpt2, "a'\u017F"), (Pieces{"a", "'", "\u017F"}));
}

TEST(Split, CoversAnyBytesExactlyOnce) {
  for (const SplitPatternInfo& row : split_patterns())
    for (uint64_t seed = 0; seed < 200; ++seed) {
      std::string text;
      for (uint64_t i = 0; i < seed; ++i) text += static_cast<char>(random_bits(seed, 1, i));
      std::string again;
      for_each_piece(row.pattern, text, [&](std::string_view piece) {
        EXPECT_FALSE(piece.empty());
        again += piece;
      });
      EXPECT_EQ(again, text) << row.name;
    }
}

TEST(Split, FindsPatternByNameAndByRegex) {
  for (const SplitPatternInfo& row : split_patterns()) {
    EXPECT_EQ(find_split_pattern(row.name).pattern, row.pattern);
    EXPECT_EQ(find_split_pattern(row.pattern).name, row.name);
    if (row.expression.empty()) continue;
    EXPECT_EQ(split_pattern_of(row.expression), row.pattern) << row.name;
  }
  EXPECT_EQ(split_pattern_of("\\w+"), std::nullopt);
  try {
    find_split_pattern("lama3");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("llama3"), std::string::npos);
  }
}

}  // namespace
}  // namespace esp::data
