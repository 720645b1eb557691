#include "esp/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/data/tokenizer/bpe_files.h"
#include "esp/data/tokenizer/piece_tokenizer.h"
#include "esp/data/tokenizer/post_processor.h"
#include "esp/data/tokenizer/tokenizer_json.h"
#include "esp/data/tokenizer/wordpiece.h"
#include "esp/obs/file.h"

namespace esp::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = kMaxJsonBytes;

std::string read_file(const fs::path& path) {
  return obs::read_whole_file(path.string(), kMaxFileBytes);
}

// Reads tokenizer_config.json beside the tokenizer; an empty object if there is none.
Json read_tokenizer_config(const fs::path& path) {
  fs::path config = path.parent_path() / "tokenizer_config.json";
  if (std::error_code error; !fs::exists(config, error)) return Json::object();
  Json json = parse_json(read_file(config), config.string());
  return json.is_object() ? json : Json::object();
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path, std::string_view pattern) {
  std::string name = path.filename().string(), what = path.string();
  std::string ending = path.extension().string();
  if (name == "vocab.json" || name == "merges.txt") {
    fs::path folder = path.parent_path();
    return read_gpt2_files(read_file(folder / "vocab.json"), read_file(folder / "merges.txt"), folder.string());
  }
  if (ending == ".json") return read_tokenizer_json(read_file(path), what);
  if (ending == ".tiktoken") return read_tiktoken(read_file(path), path.stem().string(), pattern, what);
  if (ending == ".model") {
    std::string bytes = read_file(path);
    if (looks_like_tiktoken(bytes)) return read_tiktoken(bytes, "llama3", pattern, what);
    return read_sentencepiece(bytes, what);
  }
  if (ending == ".txt") {
    Json config = read_tokenizer_config(path);
    bool lower = !config.contains("do_lower_case") || config["do_lower_case"] != false;
    return read_vocab_txt(read_file(path), lower, what);
  }
  throw UsageError(
      fmt::format("tokenizer {}: cannot tell the format from this file name; expected tokenizer.json, vocab.json with "
                  "merges.txt, *.tiktoken, *.model or vocab.txt",
                  what));
}

fs::path find_in_folder(const fs::path& folder) {
  auto has = [&](const char* name) {
    std::error_code error;
    return fs::exists(folder / name, error);
  };
  if (has("tokenizer.json")) return folder / "tokenizer.json";
  if (has("vocab.json") && has("merges.txt")) return folder / "vocab.json";
  std::vector<fs::path> ranks;
  std::error_code error;  // a folder that cannot be listed contains no *.tiktoken
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".tiktoken") ranks.push_back(entry.path());
  if (ranks.size() == 1) return ranks[0];
  if (has("tokenizer.model")) return folder / "tokenizer.model";
  if (has("vocab.txt")) return folder / "vocab.txt";
  throw IoError(
      fmt::format("tokenizer {}: the folder has no tokenizer.json, vocab.json with merges.txt, single .tiktoken file, "
                  "tokenizer.model or vocab.txt",
                  folder.string()));
}

// Special tokens named in tokenizer_config.json override those guessed from the vocabulary.
void set_special_tokens(Tokenizer& tokenizer, const Json& config) {
  SpecialTokens special = tokenizer.special();
  auto set = [&](const char* name, std::optional<int32_t>& role) {
    if (!config.contains(name)) return;
    const Json& value = config[name];
    const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
    if (!content.is_string()) return;
    if (auto id = tokenizer.id_of(content.get_ref<const std::string&>())) role = id;
  };
  set("bos_token", special.bos);
  set("eos_token", special.eos);
  set("pad_token", special.pad);
  set("mask_token", special.mask);
  set("cls_token", special.cls);
  set("sep_token", special.sep);
  set("unk_token", special.unk);
  tokenizer.set_special(special);
}

}  // namespace

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

std::vector<int32_t> encode_with_template(const Tokenizer& tokenizer, std::string_view text) {
  const TextTemplate& around = tokenizer.text_template();
  std::vector<int32_t> ids = around.before;
  tokenizer.encode(text, ids);
  ids.insert(ids.end(), around.after.begin(), around.after.end());
  return ids;
}

namespace {

// Returns the main file of a tokenizer, the one with the vocabulary.
fs::path find_tokenizer(const std::string& path_or_name) {
  const fs::path path(path_or_name);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    if (path_or_name.find('/') == path_or_name.npos && path.extension().empty())
      throw IoError(
          fmt::format("tokenizer \"{}\" is neither a file nor a folder; expected a path or \"byte\"", path_or_name));
    throw IoError(fmt::format("tokenizer {}: no such file or folder", path_or_name));
  }
  return fs::is_directory(status) ? find_in_folder(path) : path;
}

}  // namespace

std::vector<std::string> tokenizer_files(const std::string& path_or_name) {
  if (path_or_name == "byte") return {};
  const fs::path path = find_tokenizer(path_or_name);
  std::vector<std::string> files = {path.string()};
  if (path.filename() == "vocab.json") files.push_back((path.parent_path() / "merges.txt").string());
  if (path.filename() == "merges.txt") files.push_back((path.parent_path() / "vocab.json").string());
  std::error_code error;
  if (const fs::path config = path.parent_path() / "tokenizer_config.json"; fs::exists(config, error))
    files.push_back(config.string());
  return files;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path_or_name, std::string_view pattern) {
  if (path_or_name == "byte") return make_byte_tokenizer();
  const fs::path path = find_tokenizer(path_or_name);
  std::unique_ptr<Tokenizer> tokenizer = load_file(path, pattern);
  Json config = read_tokenizer_config(path);
  set_special_tokens(*tokenizer, config);
  if (path.extension() == ".txt" && !config.contains("tokenizer_class")) config["tokenizer_class"] = "BertTokenizer";
  apply_tokenizer_config(*tokenizer, config, path.extension() != ".json" || path.filename() == "vocab.json");
  return tokenizer;
}

}  // namespace esp::data
