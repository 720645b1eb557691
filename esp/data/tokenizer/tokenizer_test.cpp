// Loading by path or name, and rejected files.
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

// A tokenizer with the given normalizer steps and one token, the letter a.
std::string with_normalizer(const std::string& steps, const std::string& added = "") {
  return R"({"added_tokens":[)" + added + R"(],"normalizer":{"type":"Sequence","normalizers":[)" + steps +
         R"(]},"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"never"},)"
         R"("model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1]]}})";
}
std::string replace_a(size_t count) {
  return R"({"type":"Replace","pattern":{"String":"a"},"content":")" + std::string(count, 'a') + "\"}";
}

TEST(ExpansionLimit, ErrorNamesNormalizerStepBeyondLimit) {
  std::string steps = replace_a(1000);
  for (int i = 1; i < 5; ++i) steps += "," + replace_a(1000);
  const auto tokenizer = read_tokenizer_json(with_normalizer(steps), "t.json");
  try {
    encode(*tokenizer, "a");
    ADD_FAILURE();
  } catch (const IoError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "t.json: normalizer: step 2 of 5 (Replace \"a\"): expands 1 bytes to more than 1088 bytes; expected at most "
        "64 per byte. Is this the tokenizer's own file?");
  }
  EXPECT_NE(error_of(with_normalizer(steps, R"({"id":2,"content":"a","normalized":true})")).find("step 2 of 5"),
            std::string::npos);
  EXPECT_EQ(encode(*read_tokenizer_json(with_normalizer(replace_a(3)), "t.json"), "aa").size(), 6u);
  const auto prepend = read_tokenizer_json(
      with_normalizer(R"({"type":"Prepend","prepend":")" + std::string(5000, 'a') + "\"}"), "t.json");
  EXPECT_THROW(encode(*prepend, "a"), IoError);
}

TEST(ExpansionLimit, LimitsNormalizerSteps) {
  std::string steps = replace_a(1);
  for (int i = 0; i < 64; ++i) steps += "," + replace_a(1);
  EXPECT_EQ(error_of(with_normalizer(steps)), "t.json: normalizer: got 65 steps; expected at most 64");
}

TEST(ExpansionLimit, LimitsTemplateTokens) {
  std::string single = R"({"Sequence":{"id":"A"}})", ids = "0";
  for (int i = 0; i < 20; ++i) single += R"(,{"SpecialToken":{"id":"x"}})";
  for (int i = 0; i < 20; ++i) ids += ",0";
  const std::string json = R"({"post_processor":{"type":"TemplateProcessing","single":[)" + single +
                           R"(],"special_tokens":{"x":{"ids":[)" + ids + R"(]}}},)" + with_normalizer("").substr(1);
  EXPECT_NE(error_of(json).find("post_processor: TemplateProcessing: got more than 256 tokens around a text"),
            std::string::npos)
      << error_of(json);
}

TEST(ExpansionLimit, LimitsDecodedText) {
  const std::string added = R"({"id":2,"content":")" + std::string(100'000, 'b') + "\"}";
  const auto tokenizer = read_tokenizer_json(with_normalizer("", added), "t.json");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>(10, 2)).size(), 1'000'000u);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>(1000, 2)), IoError);
}

TEST(ByteTokenizer, EncodesBytesAndEndOfText) {
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

TEST(LoadTokenizer, RejectsMissingAndUnknownFiles) {
  obs::TemporaryFolder folder;
  EXPECT_THROW(load_tokenizer("bytes"), IoError);
  EXPECT_THROW(load_tokenizer(folder / "none.json"), IoError);
  EXPECT_THROW(load_tokenizer(folder / ""), IoError);
  obs::write_whole_file(folder / "t.bin", "x");
  EXPECT_THROW(load_tokenizer(folder / "t.bin"), UsageError);
}

TEST(LoadTokenizer, ReadsSpecialTokensFromConfig) {
  obs::TemporaryFolder folder;
  obs::write_whole_file(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nend\nhello\n");
  obs::write_whole_file(folder / "tokenizer_config.json", R"({"eos_token":{"content":"end"},"do_lower_case":true})");
  auto tokenizer = load_tokenizer(folder / "");
  EXPECT_EQ(tokenizer->special().eos, 5);
  EXPECT_EQ(tokenizer->special().mask, 4);
  EXPECT_EQ(encode(*tokenizer, "HELLO [MASK]"), (std::vector<int32_t>{6, 4}));
}

TEST(TokenizerJson, ErrorNamesUnsupportedFeature) {
  EXPECT_NE(error_of("[]").find("not a JSON object"), std::string::npos);
  EXPECT_NE(error_of("{").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{}").find("no model"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"WordLevel","vocab":{}}})").find("WordLevel"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":0,"a":1}}})").find("twice"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":-3}}})").find("-3"), std::string::npos);
  EXPECT_NE(error_of(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a"]}})").find("merge"), std::string::npos);
  EXPECT_NE(
      error_of(R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":4000000},"merges":[]}})")
          .find("in a vocabulary of"),
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

// A unigram tokenizer with five pieces and the given post-processor.
std::string with_post_processor(const std::string& post_processor) {
  return R"({"post_processor":)" + post_processor +
         R"(,"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["<s>",0],["</s>",0],["a",-1],["b",-2]]}})";
}

TEST(PostProcessor, AddsTemplateIdsAroundText) {
  const auto around = [](const std::string& json) {
    const auto tokenizer = read_tokenizer_json(with_post_processor(json), "t.json");
    return encode_with_template(*tokenizer, "ab");
  };
  const std::string bos = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
      {"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}})";
  const std::string both = R"({"type":"RobertaProcessing","cls":["<s>",1],"sep":["</s>",2]})";
  EXPECT_EQ(around("null"), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(around(R"({"type":"ByteLevel"})"), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(around(bos), (std::vector<int32_t>{1, 3, 4}));
  EXPECT_EQ(around(both), (std::vector<int32_t>{1, 3, 4, 2}));
  EXPECT_EQ(around(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},)" + bos + "]}"),
            (std::vector<int32_t>{1, 3, 4}));
  EXPECT_THROW(around(R"({"type":"Sequence","processors":[)" + both + "," + bos + "]}"), IoError);
}

TEST(PostProcessor, ErrorNamesUnsupportedProcessor) {
  const auto error = [](const std::string& json) { return error_of(with_post_processor(json)); };
  EXPECT_NE(error(R"({"type":"Magic"})").find("post_processor: got \"Magic\"; expected TemplateProcessing"),
            std::string::npos);
  EXPECT_NE(error(R"({"type":"BertProcessing","cls":["<s>",1],"sep":["</s>",7]})").find("got the token id 7"),
            std::string::npos);
  EXPECT_NE(error(R"({"type":"BertProcessing","cls":["<s>",1]})").find("expected [token, id]"), std::string::npos);
  EXPECT_NE(error(R"({"type":"TemplateProcessing","single":[]})").find("the text \"A\", once"), std::string::npos);
  EXPECT_NE(error(R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}]})").find("special_tokens"),
            std::string::npos);
  EXPECT_NE(error("7").find("post_processor: got"), std::string::npos);
}

TEST(PostProcessor, AppliesBosAndEosOfConfig) {
  obs::TemporaryFolder folder;
  const auto around = [&](const std::string& processor, const std::string& config) {
    obs::write_whole_file(folder / "tokenizer.json", with_post_processor(processor));
    obs::write_whole_file(folder / "tokenizer_config.json", config);
    return encode_with_template(*load_tokenizer(folder / ""), "a");
  };
  const std::string both = R"({"type":"BertProcessing","cls":["<s>",1],"sep":["</s>",2]})";
  EXPECT_EQ(around(both, "{}"), (std::vector<int32_t>{1, 3, 2}));
  EXPECT_EQ(around(both, R"({"add_bos_token":false})"), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(around(both, R"({"add_eos_token":false,"add_bos_token":true})"), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(around("null", R"({"add_eos_token":true})"), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(around("null", R"({"tokenizer_class":"LlamaTokenizer"})"), (std::vector<int32_t>{3}));
}

TEST(PostProcessor, SavesTemplateWithBertVocabulary) {
  obs::TemporaryFolder folder, saved;
  obs::write_whole_file(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n");
  const auto tokenizer = load_tokenizer(folder / "vocab.txt");
  EXPECT_EQ(encode_with_template(*tokenizer, "hello"), (std::vector<int32_t>{2, 5, 3}));
  tokenizer->save(saved / "");
  EXPECT_EQ(encode_with_template(*load_tokenizer(saved / ""), "hello"), (std::vector<int32_t>{2, 5, 3}));
}

TEST(BertText, MatchesBertNormalizer) {
  BertTextOptions options;
  EXPECT_EQ(normalize_bert("H\u00E9llo\u200BW\u00D6RLD\t\u4E2D", options), "helloworld  \u4E2D ");
  options.lower_case = options.strip_accents = false;
  EXPECT_EQ(normalize_bert("H\u00E9llo", options), "H\u00E9llo");
  std::vector<std::string> words;
  for_each_bert_word("a-b  c!?\u3000d", [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_EQ(words, (std::vector<std::string>{"a", "-", "b", "c", "!", "?", "d"}));
}

TEST(WordPiece, MatchesLongestTokensOrReturnsUnknownId) {
  auto tokenizer = read_vocab_txt("[UNK]\nun\n##aff\n##able\naff\n##a\n", true, "vocab");
  EXPECT_EQ(encode(*tokenizer, "unaffable"), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(encode(*tokenizer, "unaffx aff"), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2, 3, 4}), "unaffable aff");
  EXPECT_THROW(read_vocab_txt("a\nb\n", true, "vocab"), IoError);
  obs::TemporaryFolder folder;
  tokenizer->save(folder / "");
  EXPECT_EQ(encode(*load_tokenizer(folder / ""), "unaffable aff"), (std::vector<int32_t>{1, 2, 3, 4}));
}

// A field of a hand-made .model, with the field numbers and wire types of SentencePiece's protocol.
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
    for (size_t cut = 0; cut < model.size(); ++cut) {  // cut at any byte: an error or a smaller model, never a crash
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
