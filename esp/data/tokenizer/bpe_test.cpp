// Byte-level BPE: merging, word cache, files, training.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/data/tokenizer/base64.h"
#include "esp/data/tokenizer/bpe_files.h"
#include "esp/data/tokenizer/bpe_train.h"
#include "esp/data/tokenizer/byte_unicode.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

std::string random_text(uint64_t seed, size_t bytes, bool any_byte) {
  std::string text;
  constexpr std::string_view kLetters = "aaabbcd  \n'1";
  for (size_t i = 0; i < bytes; ++i) {
    uint64_t bits = random_bits(seed, 7, i);
    text += any_byte ? static_cast<char>(bits) : kLetters[bits % kLetters.size()];
  }
  return text;
}

std::unique_ptr<ByteBpe> trained(int32_t vocab, SplitPattern pattern, int threads = 1) {
  BpeTrainOptions options;
  options.vocab_size = vocab;
  options.pattern = pattern;
  options.threads = threads;
  BpeTrainer trainer(options);
  for (uint64_t seed = 0; seed < 40; ++seed) trainer.add(random_text(seed, 3000, false));
  return trainer.train();
}

// Reference implementation: merge the lowest rank, leftmost among equals, until no pair merges.
std::vector<int32_t> merge_by_definition(const BpeMerges& merges, std::vector<int32_t> symbols) {
  for (;;) {
    uint64_t lowest = BpeMerges::kNone;
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (uint64_t value = merges.find(symbols[i], symbols[i + 1]); value < lowest) {
        lowest = value;
        best = i;
      }
    if (lowest == BpeMerges::kNone) return symbols;
    symbols[best] = static_cast<int32_t>(lowest);
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(BpeMerges, MatchesReferenceForShortAndLongWords) {
  std::vector<Merge> list;
  int32_t next = 4;
  for (int32_t a = 0; a < 12; ++a)
    for (int32_t b = 0; b < 12; ++b)
      if ((a * 7 + b * 5) % 3 != 0)
        list.push_back({a, b, next + (a + b) % 8, static_cast<uint32_t>((a * 31 + b * 17) % 40)});
  BpeMerges merges(list);
  for (size_t size : {0, 1, 2, 3, 17, 63, 64, 65, 300})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::vector<int32_t> symbols;
      for (size_t i = 0; i < size; ++i) symbols.push_back(static_cast<int32_t>(random_bits(seed, size, i) % 4));
      std::vector<int32_t> expected = merge_by_definition(merges, symbols);
      symbols.resize(merges.apply(symbols.data(), symbols.size()));
      EXPECT_EQ(symbols, expected) << size;
    }
}

TEST(ByteBpe, RoundTripsAnyBytes) {
  for (const SplitPatternInfo& row : split_patterns()) {
    auto tokenizer = trained(400, row.pattern);
    for (uint64_t seed = 0; seed < 60; ++seed)
      for (bool any : {true, false}) {
        std::string text = random_text(seed, seed * 11, any);
        std::vector<int32_t> ids = encode(*tokenizer, text);
        EXPECT_EQ(tokenizer->decode(ids), text) << row.name;
        std::vector<int32_t> ordinary;
        tokenizer->encode_ordinary(text, ordinary);
        EXPECT_EQ(ordinary, ids);
      }
  }
}

TEST(ByteBpe, EncodeOrdinaryTreatsSpecialTokensAsText) {
  auto tokenizer = trained(300, SplitPattern::gpt2);
  int32_t end = tokenizer->id_of("<|endoftext|>").value();
  EXPECT_EQ(tokenizer->special().eos, end);
  std::vector<int32_t> ids = encode(*tokenizer, "a<|endoftext|><|endoftext|>b");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 2);
  EXPECT_EQ(ids.size(), 4u);
  std::vector<int32_t> ordinary;
  tokenizer->encode_ordinary("<|endoftext|>", ordinary);
  EXPECT_EQ(std::count(ordinary.begin(), ordinary.end(), end), 0);
  EXPECT_EQ(tokenizer->decode(ordinary), "<|endoftext|>");
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{300}), UsageError);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{-1}), UsageError);
}

TEST(ByteBpe, EncodesEqualIdsOnSeveralThreads) {
  auto tokenizer = trained(500, SplitPattern::llama3);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> expected;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    texts.push_back(random_text(seed + 100, 4000, seed % 4 == 0));
    expected.push_back(encode(*tokenizer, texts.back()));
  }
  // starts with an empty cache, which all threads fill
  auto fresh = read_tokenizer_json(tokenizer->to_json(), "fresh");
  std::vector<std::vector<std::vector<int32_t>>> got(4);
  std::vector<std::thread> threads;
  for (auto& mine : got)
    threads.emplace_back([&] {
      for (const std::string& text : texts) mine.push_back(encode(*fresh, text));
    });
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : got) EXPECT_EQ(mine, expected);
}

TEST(ByteBpe, EncodesEqualIdsAfterSaveAndLoad) {
  obs::TemporaryFolder folder;
  for (SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::cl100k, SplitPattern::o200k}) {
    auto tokenizer = trained(420, pattern);
    std::filesystem::create_directories(folder / "t");
    tokenizer->save(folder / "t");
    for (const std::string& path : {folder / "t", folder / "t/tokenizer.json"}) {
      auto loaded = load_tokenizer(path);
      EXPECT_EQ(loaded->vocab_size(), tokenizer->vocab_size());
      EXPECT_EQ(loaded->kind(), "bpe");
      EXPECT_EQ(loaded->special().eos, tokenizer->special().eos);
      for (uint64_t seed = 0; seed < 20; ++seed) {
        std::string text = random_text(seed, 700, seed % 2) + "<|endoftext|>";
        EXPECT_EQ(encode(*loaded, text), encode(*tokenizer, text));
      }
    }
  }
}

TEST(BpeTrainer, TrainsSameTokenizerWithAnyNumberOfThreads) {
  std::string one = trained(600, SplitPattern::gpt2, 1)->to_json();
  for (int threads : {2, 3, 7}) EXPECT_EQ(trained(600, SplitPattern::gpt2, threads)->to_json(), one) << threads;
}

TEST(BpeTrainer, MergesMostFrequentPairFirst) {
  BpeTrainOptions options;
  options.vocab_size = 256 + 1 + 2;
  BpeTrainer trainer(options);
  trainer.add("ab ab ab abc abc");
  auto tokenizer = trainer.train();
  ASSERT_EQ(tokenizer->parts().merges.size(), 2u);
  EXPECT_EQ(tokenizer->parts().tokens.bytes(257), "ab");
  EXPECT_EQ(tokenizer->parts().tokens.bytes(258), " ab");
}

TEST(BpeTrainer, DropsAndCountsRareWordsBeyondLimit) {
  auto train = [](size_t max_words, int threads) {
    WordCounts counts({.pattern = SplitPattern::gpt2, .threads = threads, .max_words = max_words, .batch_bytes = 4096});
    for (int i = 0; i < 400; ++i) {
      counts.add("often ");
      counts.add(fmt::format("rare{}x", i) + std::string(40, 'y'));
    }
    uint64_t before = counts.dropped();
    auto words = counts.finish();
    return std::pair(words, before);
  };
  auto [all, none] = train(100000, 1);
  EXPECT_EQ(none, 0u);
  auto [few, dropped] = train(64, 1);
  EXPECT_GT(dropped, 0u);
  EXPECT_LT(few.size(), all.size());
  auto often = std::find_if(few.begin(), few.end(), [](const auto& row) { return row.first == "often"; });
  ASSERT_NE(often, few.end());
  EXPECT_EQ(often->second, 400);
  EXPECT_EQ(train(64, 3).first, few);
}

TEST(BpeTrainer, RejectsTooSmallVocabulary) {
  BpeTrainOptions options;
  options.vocab_size = 256;
  EXPECT_THROW(BpeTrainer{options}, UsageError);
}

TEST(BpeTrainer, ReadsFileInChunksAsOneText) {
  obs::TemporaryFolder folder;
  std::string text;
  while (text.size() < (size_t{5} << 20)) text += random_text(text.size(), 5000, false) + "\n";
  obs::write_whole_file(folder / "text", text);
  BpeTrainOptions options;
  options.vocab_size = 300;
  BpeTrainer trainer(options);
  trainer.add_inputs({{folder / "text", InputKind::text}});
  EXPECT_EQ(trainer.bytes(), text.size());
  EXPECT_EQ(trainer.train()->vocab_size(), 300);
  EXPECT_THROW(trainer.add_inputs({{folder / "missing", InputKind::text}}), IoError);
}

std::string to_base64(std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kAlphabet[bits >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

TEST(Tiktoken, MergesPairsByRankOfMergedBytes) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += fmt::format("{} {}\n", to_base64(std::string(1, static_cast<char>(byte))), byte);
  ranks += fmt::format("{} 256\n{} 257\n{} 258\n", to_base64("ab"), to_base64("bc"), to_base64("abc"));
  auto tokenizer = read_tiktoken(ranks, "mine", "gpt2", "ranks");
  EXPECT_EQ(encode(*tokenizer, "abc"), std::vector<int32_t>{258});
  EXPECT_EQ(encode(*tokenizer, "abbc"), (std::vector<int32_t>{256, 257}));
  EXPECT_EQ(encode(*tokenizer, "zabc"), (std::vector<int32_t>{'z', 258}));
  obs::TemporaryFolder folder;
  obs::write_whole_file(folder / "some.tiktoken", ranks);
  EXPECT_EQ(encode(*load_tokenizer(folder / ""), "abc"), std::vector<int32_t>{258});
}

TEST(Tiktoken, RejectsInvalidRankFile) {
  for (std::string_view wrong :
       {"", "a", "YQ== x\n", "YQ== -1\n", "YQ=== 0\n", "*** 1\n", "YQ== 0\nYQ== 1\n", "YQ== 99999999\n"})
    EXPECT_THROW(read_tiktoken(wrong, "x", "", "ranks"), IoError) << wrong;
}

TEST(Gpt2Files, RejectsMergesWithoutTokens) {
  EXPECT_THROW(read_gpt2_files(R"({"a":0,"b":1})", "a b\n", "here"), IoError);
  EXPECT_THROW(read_gpt2_files(R"({"a":0,"b":0})", "", "here"), IoError);
  EXPECT_THROW(read_gpt2_files(R"(["a"])", "", "here"), IoError);
  EXPECT_THROW(read_gpt2_files(R"({"a":0,"b":1,"ab":2})", "a b c\n", "here"), IoError);
  auto tokenizer = read_gpt2_files(R"({"a":0,"b":1,"ab":2})", "#version: 0.2\na b\n", "here");
  // bytes without a token are dropped if there is no <unk>
  EXPECT_EQ(encode(*tokenizer, "abz"), std::vector<int32_t>{2});
}

TEST(Base64, RejectsInvalidInput) {
  EXPECT_EQ(from_base64("YWJj"), "abc");
  EXPECT_EQ(from_base64("YWI="), "ab");
  EXPECT_EQ(from_base64("YQ=="), "a");
  EXPECT_EQ(from_base64(""), "");
  EXPECT_EQ(from_base64("YQ="), std::nullopt);
  EXPECT_EQ(from_base64("Y*Jj"), std::nullopt);
}

TEST(ByteUnicode, RoundTripsEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(unicode_to_bytes(bytes_to_unicode(all)), all);
  EXPECT_EQ(bytes_to_unicode(" a\n"), "\u0120a\u010A");
  EXPECT_EQ(unicode_to_bytes("a b"), std::nullopt);
}

}  // namespace
}  // namespace esp::data
