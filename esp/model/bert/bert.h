// BERT (Devlin et al. 2019): word, position and segment embeddings with a norm, bidirectional post-norm blocks, and a
// masked-token head (dense, activation, norm, tied decoder with a bias) or a classifier on the first token.
#pragma once

#include <memory>
#include <vector>

#include "esp/model/model.h"

namespace esp::model {

ModelConfig bert_defaults();
std::unique_ptr<Model> make_bert(const ModelConfig& config, const ModelPart& part);
std::vector<Preset> bert_presets();

}  // namespace esp::model
