#include "esp/train/convert_tokenizer.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/data/tokenizer/byte_bpe.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

// A tokenizer file and the class of `transformers` that can read it.
struct TokenizerFile {
  const char *name, *reader;
};
constexpr TokenizerFile kFiles[] = {{"tokenizer.json", "PreTrainedTokenizerFast"},
                                    {"vocab.json", "GPT2Tokenizer"},
                                    {"tokenizer.model", "LlamaTokenizer"},
                                    {"vocab.txt", "BertTokenizer"}};

struct Role {
  const char* name;
  std::optional<int32_t> data::SpecialTokens::*id;
};
constexpr Role kRoles[] = {{"bos_token", &data::SpecialTokens::bos},   {"eos_token", &data::SpecialTokens::eos},
                           {"unk_token", &data::SpecialTokens::unk},   {"pad_token", &data::SpecialTokens::pad},
                           {"mask_token", &data::SpecialTokens::mask}, {"cls_token", &data::SpecialTokens::cls},
                           {"sep_token", &data::SpecialTokens::sep}};

void copy(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, error);
  if (error) throw IoError(fmt::format("cannot copy {} to {}: {}", from, to, error.message()));
}

// Writes the "byte" tokenizer as a byte-level BPE without merges; the id of a token is its byte value. A model with 256
// ids has no end-of-text token.
std::string byte_tokenizer_json(const data::Tokenizer& bytes, int64_t vocab) {
  std::vector<std::pair<std::string, int32_t>> tokens;
  for (int32_t byte = 0; byte < 256; ++byte) tokens.emplace_back(std::string(1, static_cast<char>(byte)), byte);
  data::BpeParts parts;
  parts.tokens = data::TokenTable(std::move(tokens), "the bytes");
  parts.pattern = data::SplitPattern::none;
  const int32_t end = bytes.special().eos.value();
  if (end < vocab) parts.added.push_back({bytes.decode({&end, 1}), end});
  return data::ByteBpe(std::move(parts)).to_json();
}

}  // namespace

bool has_tokenizer_files(const std::string& folder) {
  for (const TokenizerFile& file : kFiles)
    if (fs::exists(folder + "/" + file.name)) return true;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".tiktoken") return true;
  return false;
}

void copy_tokenizer_files(const std::string& from, const std::string& to) {
  const auto copy_one = [&](const std::string& name) {
    if (fs::exists(from + "/" + name)) copy(from + "/" + name, to + "/" + name);
  };
  for (const TokenizerFile& file : kFiles) copy_one(file.name);
  copy_one("merges.txt");
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(from, error))
    if (entry.path().extension() == ".tiktoken") copy_one(entry.path().filename().string());
}

void complete_hf_tokenizer(const data::Tokenizer& tokenizer, const std::string& folder, int64_t vocab,
                           int64_t seq_len) {
  const auto write_new = [&](const char* name, const std::string& text) {
    if (!fs::exists(folder + "/" + name)) obs::write_whole_file(folder + "/" + name, text);
  };
  if (tokenizer.kind() == "byte") write_new("tokenizer.json", byte_tokenizer_json(tokenizer, vocab));
  Json special = Json::object();
  for (const Role& role : kRoles)
    if (const std::optional<int32_t> id = tokenizer.special().*role.id; id && *id < vocab)
      special[role.name] = tokenizer.decode(std::span(&*id, 1));
  Json config = special;
  for (const TokenizerFile& file : kFiles)
    if (!config.contains("tokenizer_class") && fs::exists(folder + "/" + file.name))
      config["tokenizer_class"] = file.reader;
  config["model_max_length"] = seq_len;
  config["clean_up_tokenization_spaces"] = false;
  write_new("tokenizer_config.json", config.dump(2) + "\n");
  write_new("special_tokens_map.json", special.dump(2) + "\n");
}

}  // namespace esp::train
