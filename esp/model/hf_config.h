// config.json of a Hugging Face folder. All keys are written, including defaults, because other tools read them without
// defaults.
#pragma once

#include "esp/base/json.h"
#include "esp/model/config.h"

namespace esp::model {

Json hf_config(const ModelConfig& config);       // UsageError: `transformers` cannot represent this model
ModelConfig config_from_hf(const Json& config);  // IoError: a key is missing or not supported

}  // namespace esp::model
