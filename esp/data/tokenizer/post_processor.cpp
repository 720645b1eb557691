#include "esp/data/tokenizer/post_processor.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"

namespace esp::data {
namespace {

// limit for the ids around a text, because they are copied for every text
constexpr size_t kMaxTemplateIds = 256;

[[noreturn]] void refuse(std::string_view what, const Json& got, std::string_view expected) {
  throw IoError(fmt::format("{}: post_processor: got {}; expected {}", what, got.dump().substr(0, 200), expected));
}

const Json& member(const Json& part, const char* name) {
  static const Json absent;
  return part.is_object() && part.contains(name) ? part[name] : absent;
}

int32_t id_of(const Json& number, std::string_view what) {
  if (!number.is_number_integer() || number.get<int64_t>() < 0 || number.get<int64_t>() > (int64_t{1} << 30))
    refuse(what, number, "a token id");
  return number.get<int32_t>();
}

// Reads a pair such as ["[CLS]", 101].
std::vector<int32_t> token_id_of_pair(const Json& pair, std::string_view what) {
  if (!pair.is_array() || pair.size() != 2) refuse(what, pair, "[token, id]");
  return {id_of(pair[1], what)};
}

TextTemplate read_template(const Json& part, std::string_view what) {
  const Json& single = member(part, "single");
  if (!single.is_array()) refuse(what, part, "a TemplateProcessing with a list \"single\"");
  if (single.size() > kMaxTemplateIds)
    throw IoError(
        fmt::format("{}: post_processor: TemplateProcessing: got a \"single\" of {} pieces; expected at most {}", what,
                    single.size(), kMaxTemplateIds));
  TextTemplate result;
  int texts = 0;
  for (const Json& piece : single) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (member(piece["Sequence"], "id") != "A" || ++texts > 1) refuse(what, single, "the text \"A\", once");
      continue;
    }
    const Json& name = member(member(piece, "SpecialToken"), "id");
    if (!name.is_string()) refuse(what, piece, "a Sequence or a SpecialToken");
    const Json& ids = member(member(member(part, "special_tokens"), name.get<std::string>().c_str()), "ids");
    if (!ids.is_array()) refuse(what, name, "a token that special_tokens lists with its ids");
    for (const Json& id : ids) {
      if (result.before.size() + result.after.size() == kMaxTemplateIds)
        throw IoError(
            fmt::format("{}: post_processor: TemplateProcessing: got more than {} tokens around a text; "
                        "expected at most {}",
                        what, kMaxTemplateIds, kMaxTemplateIds));
      (texts == 0 ? result.before : result.after).push_back(id_of(id, what));
    }
  }
  if (texts == 0) refuse(what, single, "the text \"A\", once");
  return result;
}

TextTemplate read_part(const Json& part, std::string_view what) {
  const Json& type = member(part, "type");
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(part, what);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {token_id_of_pair(member(part, "cls"), what), token_id_of_pair(member(part, "sep"), what)};
  if (type != "Sequence")
    refuse(what, type, "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or a Sequence of them");
  const Json& parts = member(part, "processors");
  if (!parts.is_array()) refuse(what, part, "a Sequence with a list \"processors\"");
  TextTemplate result;
  for (const Json& inner : parts) {
    TextTemplate around = read_part(inner, what);
    if (around == TextTemplate()) continue;
    if (result != TextTemplate()) refuse(what, parts, "one part of a Sequence that adds tokens");
    result = std::move(around);
  }
  return result;
}

// Template ids by tokenizer class of `transformers`, used if the files do not define them.
struct ClassRow {
  std::string_view name;
  std::optional<int32_t> SpecialTokens::*before;
  std::optional<int32_t> SpecialTokens::*after;
};
constexpr ClassRow kClasses[] = {
    {"LlamaTokenizer", &SpecialTokens::bos, nullptr},
    {"CodeLlamaTokenizer", &SpecialTokens::bos, nullptr},
    {"GemmaTokenizer", &SpecialTokens::bos, nullptr},
    {"T5Tokenizer", nullptr, &SpecialTokens::eos},
    {"BertTokenizer", &SpecialTokens::cls, &SpecialTokens::sep},
    {"DistilBertTokenizer", &SpecialTokens::cls, &SpecialTokens::sep},
    {"ElectraTokenizer", &SpecialTokens::cls, &SpecialTokens::sep},
    {"RobertaTokenizer", &SpecialTokens::bos, &SpecialTokens::eos},
};

}  // namespace

TextTemplate read_post_processor(const Json& rest, std::string_view what) {
  const Json& part = member(rest, "post_processor");
  return part.is_null() ? TextTemplate() : read_part(part, what);
}

Json compose_post_processor(const Tokenizer& tokenizer) {
  const TextTemplate& around = tokenizer.text_template();
  if (around == TextTemplate()) return nullptr;
  Json single = Json::array(), special = Json::object();
  const auto put = [&](int32_t id) {
    const std::string name = tokenizer.decode({&id, 1});
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special[name] = {{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
  };
  std::for_each(around.before.begin(), around.before.end(), put);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  std::for_each(around.after.begin(), around.after.end(), put);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
}

void apply_tokenizer_config(Tokenizer& tokenizer, const Json& config, bool class_decides) {
  const SpecialTokens& special = tokenizer.special();
  TextTemplate around = tokenizer.text_template();
  if (class_decides && member(config, "tokenizer_class").is_string()) {
    std::string name = config["tokenizer_class"].get<std::string>();
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    for (const ClassRow& row : kClasses) {
      if (row.name != name) continue;
      if (row.before && special.*row.before) around.before = {*(special.*row.before)};
      if (row.after && special.*row.after) around.after = {*(special.*row.after)};
    }
  }
  const Json &bos = member(config, "add_bos_token"), &eos = member(config, "add_eos_token");
  if (bos.is_boolean() && special.bos) {
    std::erase(around.before, *special.bos);
    if (bos.get<bool>()) around.before.insert(around.before.begin(), *special.bos);
  }
  if (eos.is_boolean() && special.eos) {
    std::erase(around.after, *special.eos);
    if (eos.get<bool>()) around.after.push_back(*special.eos);
  }
  tokenizer.set_text_template(around);
}

}  // namespace esp::data
