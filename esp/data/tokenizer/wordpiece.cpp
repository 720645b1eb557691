#include "esp/data/tokenizer/wordpiece.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/data/tokenizer/expansion_limit.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

bool is_plain_white(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

}  // namespace

WordPiece::WordPiece(WordPieceParts parts, std::string_view what) : parts_(std::move(parts)) {
  for (AddedToken& token : parts_.added)
    if (token.normalized) {
      token.content = normalize_bert(token.content, parts_.text);
      added_in_normalized_ = true;
    }
  added_ = AddedTokens(std::move(parts_.added));
  std::optional<int32_t> unknown = parts_.tokens.find(parts_.unknown);
  if (!unknown) throw IoError(fmt::format("{}: its vocabulary has no \"{}\"", what, parts_.unknown));
  unknown_id_ = *unknown;
  std::vector<std::pair<std::string, int32_t>> going_on;
  for (int32_t id = 0; id < parts_.tokens.size(); ++id) {
    std::string_view token = parts_.tokens.bytes(id);
    if (!parts_.tokens.has(id) || !token.starts_with(parts_.continuing) || token.size() == parts_.continuing.size())
      continue;
    going_on.emplace_back(token.substr(parts_.continuing.size()), static_cast<int32_t>(continuation_ids_.size()));
    continuation_ids_.push_back(id);
  }
  continuations_ = TokenTable(std::move(going_on), what);
  vocab_size_ = std::max(parts_.tokens.size(), added_.size());
  special_ = guess_special(*this);
}

void WordPiece::encode(std::string_view text, std::vector<int32_t>& out) const {
  auto emit = [&](const AddedToken& token) { out.push_back(token.id); };
  added_.walk(
      text, false,
      [&](std::string_view rest) {
        if (!added_in_normalized_) return encode_ordinary(rest, out);
        std::string normalized = normalize_bert(rest, parts_.text);
        added_.walk(
            normalized, true, [&](std::string_view plain) { encode_normalized(plain, out); }, emit);
      },
      emit);
}

// White space always ends a word, so each word is normalized by itself. Most words are ASCII, which is fast.
void WordPiece::encode_ordinary(std::string_view text, std::vector<int32_t>& out) const {
  for (size_t at = 0; at < text.size();) {
    while (at < text.size() && is_plain_white(text[at])) ++at;
    size_t begin = at;
    while (at < text.size() && !is_plain_white(text[at])) ++at;
    if (at > begin) encode_normalized(normalize_bert(text.substr(begin, at - begin), parts_.text), out);
  }
}

void WordPiece::encode_normalized(std::string_view text, std::vector<int32_t>& out) const {
  for_each_bert_word(text, [&](std::string_view word) {
    if (word.size() > WordCache::kMaxBytes) return encode_word(word, out);
    WordCache::WordKey key = WordCache::key_of(word, static_cast<size_t>(text.data() + text.size() - word.data()));
    int32_t ids[WordCache::kMaxIds];
    int known = cache_.find(key, word.size(), ids);
    if (known >= 0) {
      out.insert(out.end(), ids, ids + known);
      return;
    }
    size_t before = out.size();
    encode_word(word, out);
    cache_.insert(key, word.size(), std::span(out).subspan(before));
  });
}

void WordPiece::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  auto begins_char = [&](size_t at) { return at == word.size() || (static_cast<uint8_t>(word[at]) & 0xC0) != 0x80; };
  size_t chars = 0;
  for (size_t at = 0; at < word.size(); ++at) chars += begins_char(at);
  size_t before = out.size();
  size_t at = 0;
  while (at < word.size() && chars <= parts_.max_word_chars) {
    const TokenTable& table = at == 0 ? parts_.tokens : continuations_;
    std::optional<int32_t> found;
    size_t end = std::min(word.size(), at + table.longest());
    for (; end > at; --end) {
      if (!begins_char(end)) continue;
      found = table.find(word.substr(at, end - at));
      if (found) break;
    }
    if (!found) break;
    out.push_back(at == 0 ? *found : continuation_ids_[static_cast<size_t>(*found)]);
    at = end;
  }
  if (at < word.size()) {  // if one part has no token, the complete word is unknown
    out.resize(before);
    out.push_back(unknown_id_);
  }
}

std::string WordPiece::decode(std::span<const int32_t> ids) const {
  std::string text;
  const ExpansionLimit limit = ExpansionLimit::for_ids(ids);
  for (int32_t id : ids) {
    if (!limit.allows(text.size())) limit.fail("tokenizer: decoder");
    const AddedToken* added = added_.by_id(id);
    if (!added && !parts_.tokens.has(id))
      throw UsageError(fmt::format("id {} is not in the vocabulary of {} ids", id, vocab_size_));
    std::string_view token = added ? std::string_view(added->content) : parts_.tokens.bytes(id);
    if (token.starts_with(parts_.continuing) && !text.empty()) {
      text += token.substr(parts_.continuing.size());
      continue;
    }
    bool closes = token == "." || token == "," || token == "?" || token == "!";
    if (!text.empty() && !closes) text += ' ';
    text += token;
  }
  return text;
}

std::optional<int32_t> WordPiece::id_of(std::string_view token) const {
  if (const AddedToken* added = added_.by_content(token)) return added->id;
  return parts_.tokens.find(token);
}

void WordPiece::save(const std::string& folder) const {
  obs::write_whole_file(folder + "/tokenizer.json", parts_.source.empty() ? compose() : parts_.source);
}

std::string WordPiece::compose() const {
  Json rest = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", Json::array()}};
  for (const AddedToken& token : added_.all())
    rest["added_tokens"].push_back({{"id", token.id},
                                    {"content", token.content},
                                    {"single_word", token.single_word},
                                    {"lstrip", token.lstrip},
                                    {"rstrip", token.rstrip},
                                    {"normalized", token.normalized},
                                    {"special", token.special}});
  rest["normalizer"] = {{"type", "BertNormalizer"},
                        {"clean_text", parts_.text.clean_text},
                        {"handle_chinese_chars", parts_.text.handle_chinese_chars},
                        {"strip_accents", parts_.text.strip_accents},
                        {"lowercase", parts_.text.lower_case}};
  rest["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  rest["post_processor"] = compose_post_processor(*this);
  rest["decoder"] = {{"type", "WordPiece"}, {"prefix", parts_.continuing}, {"cleanup", true}};
  std::string text = rest.dump(1);
  text.resize(text.rfind('}'));  // appends the model as text, because its vocabulary is long
  text += fmt::format(
      ",\"model\":{{\"type\":\"WordPiece\",\"unk_token\":{},\"continuing_subword_prefix\":{},"
      "\"max_input_chars_per_word\":{},\"vocab\":{{",
      quote_json(parts_.unknown), quote_json(parts_.continuing), parts_.max_word_chars);
  bool first = true;
  for (int32_t id = 0; id < parts_.tokens.size(); ++id) {
    if (!parts_.tokens.has(id)) continue;
    text += fmt::format("{}\n{}:{}", first ? "" : ",", quote_json(parts_.tokens.bytes(id)), id);
    first = false;
  }
  return text + "}}}\n";
}

std::unique_ptr<Tokenizer> read_vocab_txt(std::string_view text, bool lower_case, std::string_view what) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    tokens.emplace_back(line, static_cast<int32_t>(tokens.size()));
    at = end + 1;
  }
  WordPieceParts parts;
  parts.tokens = TokenTable(std::move(tokens), what);
  parts.text.lower_case = parts.text.strip_accents = lower_case;
  for (std::string_view name : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (auto id = parts.tokens.find(name)) parts.added.push_back({std::string(name), *id});
  return std::make_unique<WordPiece>(std::move(parts), what);
}

std::unique_ptr<Tokenizer> read_wordpiece_json(TokenizerFile& file, std::string_view text, std::string_view what) {
  auto refuse = [&](const char* part, const char* known) {
    throw IoError(fmt::format("{}: its {} is {}; supported with WordPiece: {}", what, part,
                              file.rest.contains(part) ? file.rest[part].dump() : "absent", known));
  };
  auto flag = [](const Json& json, const char* name, bool otherwise) {
    return json.contains(name) && json[name].is_boolean() ? json[name].get<bool>() : otherwise;
  };
  const Json& rest = file.rest;
  WordPieceParts parts;
  if (!rest.contains("normalizer") || !rest["normalizer"].is_object() ||
      rest["normalizer"].value("type", Json()) != "BertNormalizer")
    refuse("normalizer", "BertNormalizer");
  if (!rest.contains("pre_tokenizer") || !rest["pre_tokenizer"].is_object() ||
      rest["pre_tokenizer"].value("type", Json()) != "BertPreTokenizer")
    refuse("pre_tokenizer", "BertPreTokenizer");
  const Json& normalizer = rest["normalizer"];
  parts.text.clean_text = flag(normalizer, "clean_text", true);
  parts.text.handle_chinese_chars = flag(normalizer, "handle_chinese_chars", true);
  parts.text.lower_case = flag(normalizer, "lowercase", true);
  parts.text.strip_accents = flag(normalizer, "strip_accents", parts.text.lower_case);
  const Json& model = rest["model"];
  if (model.contains("unk_token") && model["unk_token"].is_string())
    parts.unknown = model["unk_token"].get<std::string>();
  if (model.contains("continuing_subword_prefix") && model["continuing_subword_prefix"].is_string())
    parts.continuing = model["continuing_subword_prefix"].get<std::string>();
  if (model.contains("max_input_chars_per_word") && model["max_input_chars_per_word"].is_number_unsigned())
    parts.max_word_chars = model["max_input_chars_per_word"].get<size_t>();
  parts.added = read_added_tokens(rest, what);
  parts.tokens = TokenTable(std::move(file.vocab), what);
  parts.source = text;
  return std::make_unique<WordPiece>(std::move(parts), what);
}

}  // namespace esp::data
