// Reads tokenizer.json files whose pieces include their spaces: LLaMA 2 (BPE), T5 and XLM-R (unigram).
#include <unordered_map>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/data/tokenizer/base64.h"
#include "esp/data/tokenizer/piece_tokenizer.h"

namespace esp::data {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";
constexpr size_t kMaxNormalizers = 64;  // limit, because each normalizer runs over every text and every added token

std::string text_at(const Json& json, const char* name, std::string_view otherwise = {}) {
  return json.is_object() && json.contains(name) && json[name].is_string() ? json[name].get<std::string>()
                                                                           : std::string(otherwise);
}
bool flag_at(const Json& json, const char* name, bool otherwise) {
  return json.is_object() && json.contains(name) && json[name].is_boolean() ? json[name].get<bool>() : otherwise;
}

[[noreturn]] void refuse(std::string_view what, std::string_view part, const Json& got, std::string_view known) {
  throw IoError(fmt::format("{}: its {} has {}; supported: {}", what, part, got.dump().substr(0, 200), known));
}

std::vector<const Json*> steps_of(const Json& rest, const char* name, const char* inner) {
  std::vector<const Json*> steps;
  if (!rest.contains(name) || rest[name].is_null()) return steps;
  if (text_at(rest[name], "type") == "Sequence" && rest[name].contains(inner) && rest[name][inner].is_array())
    for (const Json& step : rest[name][inner]) steps.push_back(&step);
  else
    steps.push_back(&rest[name]);
  return steps;
}

void read_replace(PieceTokenizerParts& parts, const Json& step, std::string_view what) {
  const Json& pattern = step.contains("pattern") ? step["pattern"] : Json();
  std::string to = text_at(step, "content");
  if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string())
    parts.steps.push_back({NormalizerStep::Kind::replace, pattern["String"].get<std::string>(), to});
  else if (text_at(pattern, "Regex") == " {2,}")
    parts.steps.push_back({NormalizerStep::Kind::squeeze, "", to});
  else
    refuse(what, "normalizer", step, "Replace of a String or of the Regex \" {2,}\"");
}

void read_normalizer(PieceTokenizerParts& parts, const Json& rest, std::string_view what) {
  const std::vector<const Json*> steps = steps_of(rest, "normalizer", "normalizers");
  if (steps.size() > kMaxNormalizers)
    throw IoError(
        fmt::format("{}: normalizer: got {} steps; expected at most {}", what, steps.size(), kMaxNormalizers));
  for (const Json* step : steps) {
    std::string type = text_at(*step, "type");
    if (type == "Precompiled") {
      auto blob = from_base64(text_at(*step, "precompiled_charsmap"));
      if (!blob) refuse(what, "normalizer", *step, "a table in base64");
      parts.charsmap = Charsmap(*blob, what);
      parts.steps.push_back({NormalizerStep::Kind::charsmap, "", ""});
    } else if (type == "Prepend") {
      parts.steps.push_back({NormalizerStep::Kind::prepend, "", text_at(*step, "prepend")});
      parts.decode_drops_space = true;
    } else if (type == "Replace") {
      read_replace(parts, *step, what);
    } else if (type == "Strip") {
      if (flag_at(*step, "strip_left", true)) parts.steps.push_back({NormalizerStep::Kind::strip_left, "", ""});
      if (flag_at(*step, "strip_right", true)) parts.steps.push_back({NormalizerStep::Kind::strip_right, "", ""});
    } else {
      refuse(what, "normalizer", *step, "Precompiled, Prepend, Replace, Strip");
    }
  }
}

void read_pre_tokenizer(PieceTokenizerParts& parts, const Json& rest, std::string_view what) {
  for (const Json* step : steps_of(rest, "pre_tokenizer", "pretokenizers")) {
    std::string type = text_at(*step, "type");
    if (type == "WhitespaceSplit") {
      parts.drop_white = true;
    } else if (type == "Metaspace") {
      if (text_at(*step, "replacement", kSpaceMark) != kSpaceMark)
        refuse(what, "pre-tokenizer", *step, "Metaspace with U+2581");
      std::string scheme =
          text_at(*step, "prepend_scheme", flag_at(*step, "add_prefix_space", true) ? "always" : "never");
      if (scheme != "always" && scheme != "first" && scheme != "never")
        refuse(what, "pre-tokenizer", *step, "prepend_scheme always, first, never");
      parts.metaspace = true;
      parts.prefix = scheme == "always"  ? PieceTokenizerParts::Prefix::always
                     : scheme == "first" ? PieceTokenizerParts::Prefix::first
                                         : PieceTokenizerParts::Prefix::never;
      parts.split_at_spaces = flag_at(*step, "split", true);
      parts.decode_drops_space |= scheme != "never";
    } else {
      refuse(what, "pre-tokenizer", *step, "Metaspace, WhitespaceSplit before it, ByteLevel, Split");
    }
  }
  if (parts.drop_white && !parts.metaspace)
    refuse(what, "pre-tokenizer", rest["pre_tokenizer"], "WhitespaceSplit with Metaspace");
}

void set_bpe(PieceTokenizerParts& parts, TokenizerFile& file, std::string_view what) {
  std::vector<ScoredPiece>& pieces = parts.model.pieces;
  pieces.resize(file.vocab.size());
  std::vector<bool> taken(file.vocab.size(), false);
  std::unordered_map<std::string, int32_t> ids;
  for (auto& [text, id] : file.vocab) {
    if (static_cast<size_t>(id) >= pieces.size() || taken[static_cast<size_t>(id)])
      throw IoError(
          fmt::format("{}: vocabulary: expected every id from 0 to {} exactly once", what, pieces.size() - 1));
    taken[static_cast<size_t>(id)] = true;
    pieces[static_cast<size_t>(id)].text = text;
    ids.emplace(std::move(text), id);
  }
  for (const auto& [left, right] : file.merges) {
    auto a = ids.find(left), b = ids.find(right), whole = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || whole == ids.end())
      throw IoError(
          fmt::format("{}: the merge \"{} {}\" has a part or a result that is not a token", what, left, right));
    parts.merges.push_back({a->second, b->second, whole->second, static_cast<uint32_t>(parts.merges.size())});
  }
  const Json& model = file.rest["model"];
  parts.ignore_merges = flag_at(model, "ignore_merges", false);
  parts.model.unknown.fuse = flag_at(model, "fuse_unk", false);
  if (auto row = ids.find(text_at(model, "unk_token")); row != ids.end()) parts.model.unknown.id = row->second;
}

void set_unigram(PieceTokenizerParts& parts, TokenizerFile& file, std::string_view what) {
  parts.unigram = true;
  for (auto& [text, score] : file.scored) parts.model.pieces.push_back({std::move(text), score, PieceType::normal});
  const Json& model = file.rest["model"];
  if (!model.contains("unk_id") || model["unk_id"].is_null()) return;
  if (!model["unk_id"].is_number_unsigned() || model["unk_id"].get<uint64_t>() >= parts.model.pieces.size())
    refuse(what, "model", model["unk_id"], "an unk_id within the vocabulary");
  parts.model.unknown.id = model["unk_id"].get<int32_t>();
}

}  // namespace

std::unique_ptr<Tokenizer> read_piece_json(TokenizerFile& file, std::string_view text, std::string_view what) {
  PieceTokenizerParts parts;
  parts.model.what = what;
  parts.decode_drops_space = false;
  if (text_at(file.rest["model"], "type") == "Unigram" || !file.scored.empty())
    set_unigram(parts, file, what);
  else
    set_bpe(parts, file, what);
  if (parts.model.pieces.empty()) throw IoError(fmt::format("{}: its vocabulary is empty", what));
  if (flag_at(file.rest["model"], "byte_fallback", false)) parts.model.unknown.as_bytes = set_byte_pieces(parts.model);
  read_normalizer(parts, file.rest, what);
  read_pre_tokenizer(parts, file.rest, what);
  parts.added = read_added_tokens(file.rest, what);
  parts.file_name = "tokenizer.json";
  parts.source = text;
  return std::make_unique<PieceTokenizer>(std::move(parts));
}

}  // namespace esp::data
