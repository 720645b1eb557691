// Tables of the fields of config.json and how each field affects the computation. One table has the fields of all
// model_types; each model_type has another table. A field that is in neither table is rejected unless its value is
// null, because it may change the computation.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "esp/base/json.h"
#include "esp/model/config.h"

namespace esp::model {

enum class HfUse : uint8_t {
  read,     // from_json reads it
  fixed,    // only the listed values are supported; others are rejected
  kept,     // does not change the logits; preserved on export
  written,  // does not change the logits; an export writes its own value
};

struct HfField {
  std::string_view name;
  HfUse use;
  // use `fixed`: a JSON array of the accepted values; use `read`: "null" if null means the default
  std::string_view values = {};
};

std::vector<HfField> hf_fields(std::string_view model_type);  // IoError: unsupported model_type

// IoError names the first field that is unknown or has an unsupported value.
void check_hf_fields(const Json& config, std::string_view model_type);

// Copies fields from `source`, the config.json from which the model was imported. Token ids are copied if they lie
// within the vocabulary. `kept` fields are copied if `source` describes the same model.
void keep_hf_fields(Json& exported, const Json& source, const ModelConfig& config);

}  // namespace esp::model
