// GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020): learned positions, pre-norm, gelu, tied head, biases.
#pragma once

#include <memory>
#include <vector>

#include "esp/model/model.h"

namespace esp::model {

ModelConfig gpt_defaults();
std::unique_ptr<Model> make_gpt(const ModelConfig& config, const ModelPart& part);
std::vector<Preset> gpt_presets();

}  // namespace esp::model
