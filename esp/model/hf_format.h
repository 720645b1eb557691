// The Hugging Face format of one architecture, referenced by a row of models.cpp, and helpers shared by all.
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
  std::string_view model_type;                      // of config.json
  std::string_view prefix;                          // of the names of the base model's tensors
  std::vector<std::string_view> (*roots)();         // first components after the prefix, to detect names without it
  std::span<const HfField> fields;                  // of this model_type, besides the common ones
  std::span<const std::string_view> architectures;  // the classes that are read
  std::vector<HfTensor> (*names)(const ModelConfig&);
  std::vector<HfCopy> (*copies)(const ModelConfig&);
  bool (*is_ignored)(const ModelConfig&, std::string_view name);
  Json (*to_json)(const ModelConfig&);
  ModelConfig (*from_json)(const Json&);
};

std::string_view hf_activation(kernel::Activation activation);

// The value of a key, or `otherwise` if absent or null. IoError for another type.
template <typename T>
T hf_value(const Json& config, const char* key, T otherwise) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return otherwise;
  try {
    if constexpr (std::is_same_v<T, int64_t>) {  // 1e99 fits no integer, and the library does not look
      if (!at->is_number_integer()) throw IoError(fmt::format("config.json: {} must be an integer", key));
    }
    return at->get<T>();
  } catch (const Json::exception&) {
    throw IoError(
        fmt::format("config.json: {} = {}: wrong type; expected one like {}", key, at->dump(), Json(otherwise).dump()));
  }
}
// The activation a key names, or `otherwise`. IoError lists the known.
kernel::Activation hf_activation_under(const Json& config, const char* key, const char* otherwise);
int64_t hf_size(const Json& config, const char* key);  // must be there, a positive integer
std::string hf_architecture(const Json& config);       // the class that was saved; empty: the file has none

// Adds "<ours>.weight" and, with `bias`, "<ours>.bias", mapped from the same names of `theirs`.
void add_pair(std::vector<HfTensor>& list, const std::string& ours, const std::string& theirs, bool bias,
              bool transposed);
// The same for a packed parameter: several of theirs side by side, `widths` columns each.
void add_packed(std::vector<HfTensor>& list, const std::string& ours, const std::vector<std::string>& theirs,
                const std::vector<int64_t>& widths, bool bias);

extern const HfFormat kGptHf, kLlamaHf, kBertHf;

}  // namespace esp::model
