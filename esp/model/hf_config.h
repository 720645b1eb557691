// config.json of a Hugging Face folder. All keys are written, defaults too, because other tools read them literally.
#pragma once

#include "esp/base/json.h"
#include "esp/model/config.h"

namespace esp::model {

Json hf_config(const ModelConfig& config);       // UsageError: not representable in `transformers`
ModelConfig config_from_hf(const Json& config);  // IoError: what is missing or not understood

}  // namespace esp::model
