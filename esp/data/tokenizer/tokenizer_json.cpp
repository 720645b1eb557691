#include "esp/data/tokenizer/tokenizer_json.h"

#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/byte_unicode.h"
#include "esp/data/tokenizer/piece_tokenizer.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/data/tokenizer/wordpiece.h"

namespace esp::data {
namespace {

std::string_view type_of(const Json& part) {
  if (!part.is_object() || !part.contains("type") || !part["type"].is_string()) return "";
  return part["type"].get_ref<const std::string&>();
}

bool flag(const Json& part, const char* name, bool otherwise) {
  return part.contains(name) && part[name].is_boolean() ? part[name].get<bool>() : otherwise;
}

bool is_set(const Json& part, const char* name) {
  if (!part.contains(name) || part[name].is_null()) return false;
  return !part[name].is_string() || !part[name].get_ref<const std::string&>().empty();
}

[[noreturn]] void refuse(std::string_view what, std::string_view part, std::string_view got, std::string_view known) {
  throw IoError(fmt::format("{}: its {} is \"{}\"; supported: {}", what, part, got, known));
}

// Returns the parts of a Sequence; a single step as a list of one; an empty list for null.
std::vector<const Json*> steps_of(const Json& rest, const char* name, const char* inner) {
  std::vector<const Json*> steps;
  if (!rest.contains(name) || rest[name].is_null()) return steps;
  const Json& part = rest[name];
  if (type_of(part) == "Sequence" && part.contains(inner) && part[inner].is_array())
    for (const Json& step : part[inner]) steps.push_back(&step);
  else
    steps.push_back(&part);
  return steps;
}

SplitPattern split_step(const Json& step, std::string_view what) {
  if (flag(step, "invert", false) || !step.contains("behavior") || step["behavior"] != "Isolated")
    refuse(what, "Split", step.dump(), "behavior Isolated, not inverted");
  if (!step.contains("pattern") || !step["pattern"].contains("Regex") || !step["pattern"]["Regex"].is_string())
    refuse(what, "Split", step.dump(), "a Regex");
  const std::string& expression = step["pattern"]["Regex"].get_ref<const std::string&>();
  if (auto pattern = split_pattern_of(expression)) return *pattern;
  refuse(what, "split pattern", expression, "those of GPT-2, GPT-4 (cl100k), LLaMA 3, Qwen 2 and GPT-4o (o200k)");
}

std::unique_ptr<Tokenizer> read_byte_bpe(TokenizerFile& file, std::string_view text, std::string_view what) {
  BpeParts parts;
  parts.source = text;
  parts.pattern = SplitPattern::none;
  for (const Json* step : steps_of(file.rest, "pre_tokenizer", "pretokenizers")) {
    if (type_of(*step) == "ByteLevel") {
      parts.add_prefix_space = flag(*step, "add_prefix_space", true);
      if (flag(*step, "use_regex", true)) {
        if (parts.pattern != SplitPattern::none) refuse(what, "pre-tokenizer", step->dump(), "one split pattern");
        parts.pattern = SplitPattern::gpt2;
      }
    } else if (type_of(*step) == "Split") {
      if (parts.pattern != SplitPattern::none) refuse(what, "pre-tokenizer", step->dump(), "one split pattern");
      parts.pattern = split_step(*step, what);
    } else {
      refuse(what, "pre-tokenizer", type_of(*step), "ByteLevel, Split");
    }
  }
  if (auto steps = steps_of(file.rest, "normalizer", "normalizers"); !steps.empty())
    refuse(what, "normalizer", type_of(*steps[0]), "none with a byte-level BPE");
  const Json& model = file.rest["model"];
  parts.ignore_merges = flag(model, "ignore_merges", false);
  parts.fuse_unknown = flag(model, "fuse_unk", false);
  parts.added = read_added_tokens(file.rest, what);
  if (is_set(model, "unk_token") && model["unk_token"].is_string())
    for (const auto& [spelled, id] : file.vocab)
      if (spelled == model["unk_token"].get_ref<const std::string&>()) parts.unknown = id;
  set_byte_level_vocab(parts, std::move(file.vocab), file.merges, what);
  if (is_byte_tokenizer(parts) && read_post_processor(file.rest, what) == TextTemplate()) return make_byte_tokenizer();
  return std::make_unique<ByteBpe>(std::move(parts));
}

}  // namespace

void set_byte_level_vocab(BpeParts& parts, std::vector<std::pair<std::string, int32_t>> vocab,
                          const std::vector<std::pair<std::string, std::string>>& merges, std::string_view what) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (const auto& [spelled, id] : vocab) ids.emplace(spelled, id);
  parts.merges.reserve(merges.size());
  for (const auto& [left, right] : merges) {
    auto a = ids.find(left), b = ids.find(right), whole = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || whole == ids.end())
      throw IoError(
          fmt::format("{}: the merge \"{} {}\" has a part or a result that is not a token", what, left, right));
    parts.merges.push_back({a->second, b->second, whole->second, static_cast<uint32_t>(parts.merges.size())});
  }
  // A token with characters outside the byte alphabet is an added token that is also in the vocabulary; its text is
  // kept.
  for (auto& [token, id] : vocab)
    if (std::optional<std::string> bytes = unicode_to_bytes(token)) token = std::move(*bytes);
  parts.tokens = TokenTable(std::move(vocab), what);
}

std::vector<AddedToken> read_added_tokens(const Json& rest, std::string_view what) {
  std::vector<AddedToken> added;
  if (!rest.contains("added_tokens") || rest["added_tokens"].is_null()) return added;
  if (!rest["added_tokens"].is_array()) throw IoError(fmt::format("{}: added_tokens is not a list", what));
  for (const Json& row : rest["added_tokens"]) {
    if (!row.is_object() || !row.contains("id") || !row["id"].is_number_integer() || !row.contains("content") ||
        !row["content"].is_string())
      throw IoError(fmt::format("{}: an added token lacks its id or its content", what));
    AddedToken token;
    int64_t id = row["id"].get<int64_t>();
    if (id < 0 || id > (int64_t{1} << 30))
      throw IoError(fmt::format("{}: an added token has the id {}; expected 0 to {}", what, id, int64_t{1} << 30));
    token.id = static_cast<int32_t>(id);
    token.content = row["content"].get<std::string>();
    token.special = flag(row, "special", false);
    token.normalized = flag(row, "normalized", !token.special);
    token.single_word = flag(row, "single_word", false);
    token.lstrip = flag(row, "lstrip", false);
    token.rstrip = flag(row, "rstrip", false);
    added.push_back(std::move(token));
  }
  return added;
}

namespace {

std::unique_ptr<Tokenizer> read_model(TokenizerFile& file, std::string_view text, std::string_view what) {
  if (!file.rest.contains("model") || !file.rest["model"].is_object())
    throw IoError(fmt::format("{} has no model; a tokenizer.json has one", what));
  const Json& model = file.rest["model"];
  std::string type(type_of(model));
  if (type.empty()) type = !file.scored.empty() ? "Unigram" : !file.merges.empty() ? "BPE" : "WordPiece";
  if (type == "WordPiece") return read_wordpiece_json(file, text, what);
  if (type == "Unigram") return read_piece_json(file, text, what);
  if (type != "BPE") refuse(what, "model", type, "BPE, WordPiece, Unigram");
  if (is_set(model, "continuing_subword_prefix") || is_set(model, "end_of_word_suffix"))
    refuse(what, "model", "BPE with marked word parts", "BPE without marked word parts");
  if (model.contains("dropout") && model["dropout"].is_number() && model["dropout"].get<double>() != 0)
    refuse(what, "model", "BPE with dropout", "BPE without dropout (with dropout, ids would differ from call to call)");
  for (const Json* step : steps_of(file.rest, "pre_tokenizer", "pretokenizers"))
    if (type_of(*step) == "ByteLevel") return read_byte_bpe(file, text, what);
  return read_piece_json(file, text, what);
}

}  // namespace

std::unique_ptr<Tokenizer> read_tokenizer_json(std::string_view text, std::string_view what) {
  TokenizerFile file = parse_tokenizer_file(text, what);
  TextTemplate around = read_post_processor(file.rest, what);
  std::unique_ptr<Tokenizer> tokenizer = read_model(file, text, what);
  for (const auto* ids : {&around.before, &around.after})
    for (const int32_t id : *ids)
      if (id >= tokenizer->vocab_size())
        throw IoError(
            fmt::format("{}: post_processor: got the token id {}; expected less than the {} ids of the vocabulary",
                        what, id, tokenizer->vocab_size()));
  tokenizer->set_text_template(std::move(around));
  return tokenizer;
}

}  // namespace esp::data
