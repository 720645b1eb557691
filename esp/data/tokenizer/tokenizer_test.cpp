// Loading by path or name, and what is refused.
#include "esp/data/tokenizer/tokenizer.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/bert_text.h"
#include "esp/data/tokenizer/piece_tokenizer.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/data/tokenizer/wordpiece.h"
#include "esp/obs/file.h"
#include "esp/obs/temporary_folder.h"

namespace esp::data {
namespace {

std::string error_of(const std::string& json) {
  try {
    read_tokenizer_json(json, "t.json");
  } catch (const IoError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(ByteTokenizer, IsBytesAndAnEnd) {
  auto tokenizer = load_tokenizer("byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->kind(), "byte");
  EXPECT_EQ(encode(*tokenizer, "a\xFF<|endoftext|>"), (std::vector<int32_t>{'a', 255, 256}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 255, 256}), "a\xFF<|endoftext|>");
  EXPECT_EQ(tokenizer->special().eos, 256);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{257}), UsageError);
  obs::TemporaryFolder folder;
  tokenizer->save(folder / "");
  EXPECT_EQ(load_tokenizer(folder / "")->kind(), "byte");
}

TEST(LoadTokenizer, SaysWhatIsMissing) {
  obs::TemporaryFolder folder;
  EXPECT_THROW(load_tokenizer("bytes"), IoError);
  EXPECT_THROW(load_tokenizer(folder / "none.json"), IoError);
  EXPECT_THROW(load_tokenizer(folder / ""), IoError);
  obs::write_whole_file(folder / "t.bin", "x");
  EXPECT_THROW(load_tokenizer(folder / "t.bin"), UsageError);
}

TEST(LoadTokenizer, TakesRolesFromTheConfigBesideIt) {
  obs::TemporaryFolder folder;
  obs::write_whole_file(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nend\nhello\n");
  obs::write_whole_file(folder / "tokenizer_config.json", R"({"eos_token":{"content":"end"},"do_lower_case":true})");
  auto tokenizer = load_tokenizer(folder / "");
  EXPECT_EQ(tokenizer->special().eos, 5);
  EXPECT_EQ(tokenizer->special().mask, 4);
  EXPECT_EQ(encode(*tokenizer, "HELLO [MASK]"), (std::vector<int32_t>{6, 4}));
}

TEST(TokenizerJson, RefusesWhatItDoesNotKnowByName) {
  EXPECT_NE(error_of("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{}").find("no model"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"WordLevel","vocab":{}}})").find("WordLevel"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":0,"a":1}}})").find("twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":-3}}})").find("-3"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})").find("merge"), std::string::npos);
  EXPECT_NE(
      error_of(R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":4000000},"merges":[]}})")
          .find("far beyond"),
      std::string::npos);
  EXPECT_NE(error_of(R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"x+"},
      "behavior":"Isolated","invert":false},{"type":"ByteLevel","use_regex":false}]},"model":{"type":"BPE","vocab":{}}})")
                .find("x+"),
            std::string::npos);
  EXPECT_NE(
      error_of(
          R"({"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{}}})")
          .find("NFC"),
      std::string::npos);
}

TEST(BertText, NormalizesAsBertDoes) {
  BertTextOptions options;
  EXPECT_EQ(normalize_bert("H\u00E9llo\u200BW\u00D6RLD\t\u4E2D", options), "helloworld  \u4E2D ");
  options.lower_case = options.strip_accents = false;
  EXPECT_EQ(normalize_bert("H\u00E9llo", options), "H\u00E9llo");
  std::vector<std::string> words;
  for_each_bert_word("a-b  c!?\u3000d", [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_EQ(words, (std::vector<std::string>{"a", "-", "b", "c", "!", "?", "d"}));
}

TEST(WordPiece, TakesTheLongestAndGivesUpOnAWholeWord) {
  auto tokenizer = read_vocab_txt("[UNK]\nun\n##aff\n##able\naff\n##a\n", true, "vocab");
  EXPECT_EQ(encode(*tokenizer, "unaffable"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(encode(*tokenizer, "unaffx aff"), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2, 3, 4}), "unaffable aff");
  EXPECT_THROW(read_vocab_txt("a\nb\n", true, "vocab"), IoError);
  obs::TemporaryFolder folder;
  tokenizer->save(folder / "");
  EXPECT_EQ(encode(*load_tokenizer(folder / ""), "unaffable aff"), (std::vector<int32_t>{1, 2, 3, 4}));
}

// A .model by hand: field numbers and wire types of SentencePiece's protocol.
std::string field(int number, std::string_view bytes) {
  return static_cast<char>(number << 3 | 2) + std::string(1, static_cast<char>(bytes.size())) + std::string(bytes);
}
std::string piece(std::string_view text, float score, int type) {
  std::string message = field(1, text) + '\x15';
  message.append(reinterpret_cast<const char*>(&score), 4);
  message += '\x18';
  message += static_cast<char>(type);
  return field(1, message);
}

TEST(SentencePieceFile, ReadsUnigramAndBpe) {
  std::string pieces = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3) + piece("\u2581", -3, 1) +
                       piece("\u2581ab", -1, 1) + piece("a", -4, 1) + piece("b", -4, 1) + piece("ab", -2, 1);
  std::string bpe = pieces + field(2, std::string("\x18\x02", 2)),
              unigram = pieces + field(2, std::string("\x18\x01", 2));
  for (const std::string& model : {bpe, unigram}) {
    auto tokenizer = read_sentencepiece(model, "m.model");
    EXPECT_EQ(encode(*tokenizer, "ab  ab"), (std::vector<int32_t>{4, 4}));
    EXPECT_EQ(encode(*tokenizer, "xyab"), (std::vector<int32_t>{3, 0, 7}));
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{4, 4}), "ab ab");
    EXPECT_EQ(tokenizer->special().bos, 1);
    EXPECT_EQ(tokenizer->special().eos, 2);
    for (size_t cut = 0; cut < model.size(); ++cut) {  // cut anywhere: an error or a smaller model, never a crash
      try {
        encode(*read_sentencepiece(model.substr(0, cut), "cut"), "ab xyz");
      } catch (const IoError&) {
      }
    }
  }
  EXPECT_THROW(read_sentencepiece("", "empty"), IoError);
  EXPECT_THROW(read_sentencepiece(pieces + field(2, std::string("\x18\x04", 2)), "characters"), IoError);
}

}  // namespace
}  // namespace esp::data
