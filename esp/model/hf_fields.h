// The meaning of each field of config.json. A field without a row is rejected unless it is null, because it may change
// the computation. One table for every model_type, plus one for each.
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
  fixed,    // the model supports one value; others are rejected
  kept,     // changes no logit; preserved on export
  written,  // changes no logit; an export writes its own
};

struct HfField {
  std::string_view name;
  HfUse use;
  std::string_view values = {};  // fixed: the accepted values, a JSON array; read: "null" where null means the default
};

std::vector<HfField> hf_fields(std::string_view model_type);  // IoError: model_type is not read

// IoError names the first field that is not known, or whose value is not supported.
void check_hf_fields(const Json& config, std::string_view model_type);

// Copies from `source`, the config.json a model was imported from, the fields beyond `config`'s shape: token ids of the
// vocabulary and, if it describes the same model, every kept field.
void keep_hf_fields(Json& exported, const Json& source, const ModelConfig& config);

}  // namespace esp::model
