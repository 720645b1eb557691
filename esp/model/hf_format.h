// The Hugging Face format of one architecture, referenced by its row of models.cpp, and helpers that all formats share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/model/config.h"
#include "esp/model/hf_fields.h"
#include "esp/model/hf_names.h"

namespace esp::model {

struct HfFormat {
  std::string_view model_type;  // "model_type" in config.json
  std::string_view prefix;      // name prefix of the base model's tensors
  // First components of tensor names after the prefix. They show that a name was stored without the prefix.
  std::vector<std::string_view> (*roots)();
  std::span<const HfField> fields;  // fields that only this model_type has; the common ones are in hf_fields.cpp
  std::span<const std::string_view> architectures;  // supported classes
  std::vector<HfTensor> (*names)(const ModelConfig&);
  std::vector<HfAlias> (*aliases)(const ModelConfig&);
  bool (*is_ignored)(const ModelConfig&, std::string_view name);
  Json (*to_json)(const ModelConfig&);
  ModelConfig (*from_json)(const Json&);
};

std::string_view hf_activation(kernel::Activation activation);

// The value of a key, or `otherwise` if it is absent or null. IoError for another type.
template <typename T>
T hf_value(const Json& config, const char* key, T otherwise) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return otherwise;
  try {
    // An integer is checked first, because the JSON library converts 1e99 to an integer without an error.
    if constexpr (std::is_same_v<T, int64_t>) {
      if (!at->is_number_integer())
        throw IoError(fmt::format("config.json: {} = {}: expected an integer", key, at->dump()));
    }
    return at->get<T>();
  } catch (const Json::exception&) {
    throw IoError(fmt::format("config.json: {} = {}: wrong type; expected a value such as {}", key, at->dump(),
                              Json(otherwise).dump()));
  }
}
// The activation function that a key names, or `otherwise`. IoError lists the known names.
kernel::Activation hf_activation_at(const Json& config, const char* key, const char* otherwise);
int64_t hf_size(const Json& config, const char* key);  // the value of a required positive integer
// The `transformers` class of the saved model; empty if the file does not name it.
std::string hf_architecture(const Json& config);

// Maps "<ours>.weight" to "<theirs>.weight" and, with `bias`, "<ours>.bias" to "<theirs>.bias".
void add_pair(std::vector<HfTensor>& list, const std::string& ours, const std::string& theirs, bool bias,
              bool transposed);
// Maps a packed parameter: it contains the tensors `theirs` side by side; theirs[i] has widths[i] columns.
void add_packed(std::vector<HfTensor>& list, const std::string& ours, const std::vector<std::string>& theirs,
                const std::vector<int64_t>& widths, bool bias);

extern const HfFormat kGptHf, kLlamaHf, kBertHf;

}  // namespace esp::model
