#include "esp/train/hf_settings.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/ckpt/hf_folder.h"
#include "esp/obs/file.h"

namespace esp::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr const char* kSource = "hf_config.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr const char* kFiles[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", kGeneration,
                                  "chat_template.jinja",   "chat_template.json"};

Json object_in(const std::string& path) {
  if (!fs::is_regular_file(path)) return Json::object();
  Json json = parse_json(obs::read_whole_file(path, kMaxBytes), path);
  if (!json.is_object()) throw IoError(fmt::format("{}: got {}; expected an object", path, json.type_name()));
  return json;
}

// The path of the file from which the model was configured: config.json if the folder also has the model's weights,
// else the copy in a checkpoint.
std::string source_path(const std::string& folder) {
  return folder + "/" + (ckpt::is_hf_folder(folder) ? ckpt::kHfConfigName : kSource);
}

std::vector<int32_t> ids_under_eos(const Json& config, const std::string& where) {
  std::vector<int32_t> ids;
  const auto at = config.find("eos_token_id");
  if (at == config.end() || at->is_null()) return ids;
  for (const Json& id : at->is_array() ? *at : Json::array({*at})) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX)
      throw IoError(fmt::format("{}: eos_token_id = {}: expected an id or a list of ids", where, at->dump()));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

std::map<std::string, std::string> read_hf_settings(std::string folder) {
  std::map<std::string, std::string> files;
  if (const std::string parent = fs::path(folder).parent_path();
      fs::is_regular_file(folder) && ckpt::is_hf_folder(parent))
    folder = parent;
  if (!fs::is_directory(folder)) return files;
  for (const char* name : kFiles)
    if (const std::string path = folder + "/" + name; fs::is_regular_file(path))
      files[name] = obs::read_whole_file(path, kMaxBytes);
  if (const std::string path = source_path(folder); fs::is_regular_file(path))
    files[kSource] = obs::read_whole_file(path, kMaxBytes);
  return files;
}

void write_hf_settings(const std::map<std::string, std::string>& files, const std::string& folder, bool hf) {
  for (const auto& [name, text] : files)
    if (!hf || name != kSource) obs::write_whole_file(folder + "/" + name, text);
}

Json hf_source_config(const std::string& folder) {
  return object_in(source_path(folder));
}

std::vector<int32_t> end_token_ids(const std::string& folder, std::optional<int32_t> tokenizer_eos) {
  const std::string generation = folder + "/" + kGeneration;
  std::vector<int32_t> ids = ids_under_eos(object_in(generation), generation);
  if (ids.empty()) ids = ids_under_eos(hf_source_config(folder), source_path(folder));
  if (ids.empty() && tokenizer_eos) ids.push_back(*tokenizer_eos);
  return ids;
}

}  // namespace esp::train
