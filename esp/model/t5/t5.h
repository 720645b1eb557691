// The encoder–decoder of Vaswani et al. 2017, pre-norm: blocks 0 … L−1 encode the source, blocks L … 2L−1 decode the
// target with cross-attention to the encoder output. Source, target and head share one token table.
#pragma once

#include <memory>
#include <vector>

#include "esp/model/model.h"

namespace esp::model {

ModelConfig t5_defaults();
std::unique_ptr<Model> make_t5(const ModelConfig& config, const ModelPart& part);
std::vector<Preset> t5_presets();

}  // namespace esp::model
