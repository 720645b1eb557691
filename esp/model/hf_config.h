// config.json of a Hugging Face folder. Keys are read literally by other tools, so all are written, defaults too.
#pragma once

#include "esp/base/json.h"
#include "esp/model/config.h"

namespace esp::model {

Json hf_config(const ModelConfig& config);       // UsageError: what `transformers` has no words for
ModelConfig config_from_hf(const Json& config);  // IoError: what is missing or not understood

}  // namespace esp::model
