// One architecture's Hugging Face form: what a row of models.cpp points at; and what the three forms share.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/model/config.h"
#include "esp/model/hf_names.h"

namespace esp::model {

struct HfFormat {
  std::string_view model_type;               // of config.json
  std::string_view prefix;                   // of the names of the base model's tensors
  std::vector<std::string_view> (*roots)();  // what follows the prefix, to tell a name that lacks it
  std::vector<HfTensor> (*names)(const ModelConfig&);
  bool (*is_ignored)(const ModelConfig&, std::string_view name);
  Json (*to_json)(const ModelConfig&);
  ModelConfig (*from_json)(const Json&);
};

std::string_view hf_activation(kernel::Activation activation);
kernel::Activation activation_from_hf(const std::string& name);  // IoError lists the known

// The value of a key, or `otherwise` where it is absent or null. IoError where it has another type.
template <typename T>
T hf_value(const Json& config, const char* key, T otherwise) {
  const auto at = config.find(key);
  if (at == config.end() || at->is_null()) return otherwise;
  try {
    if constexpr (std::is_same_v<T, int64_t>) {  // 1e99 fits no integer, and the library does not look
      if (!at->is_number_integer()) throw IoError(fmt::format("config.json: {} must be a whole number", key));
    }
    return at->get<T>();
  } catch (const Json::exception&) {
    throw IoError(fmt::format("config.json: {} = {} is not of the kind expected, such as {}", key, at->dump(),
                              Json(otherwise).dump()));
  }
}
int64_t hf_size(const Json& config, const char* key);  // must be there, a positive integer

// "<ours>.weight" and, with `bias`, "<ours>.bias" from the same of `theirs`.
void add_pair(std::vector<HfTensor>& list, const std::string& ours, const std::string& theirs, bool bias,
              bool transposed);
// The same where ours packs several of theirs side by side, `widths` columns each.
void add_packed(std::vector<HfTensor>& list, const std::string& ours, const std::vector<std::string>& theirs,
                const std::vector<int64_t>& widths, bool bias);

extern const HfFormat kGptHf, kLlamaHf, kBertHf;

}  // namespace esp::model
