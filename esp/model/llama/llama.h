// LLaMA (Touvron et al. 2023): RMSNorm, rotary positions (half-split), SwiGLU, grouped-query attention, no biases,
// untied head.
#pragma once

#include <memory>
#include <vector>

#include "esp/model/model.h"

namespace esp::model {

ModelConfig llama_defaults();
std::unique_ptr<Model> make_llama(const ModelConfig& config, const ModelPart& part);
std::vector<Preset> llama_presets();

}  // namespace esp::model
