// From a model's config to the options of its layers.
#pragma once

#include "esp/model/config.h"
#include "esp/nn/layers/block.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

// Dropout sites: the stems first, then the blocks, so that no two places draw alike.
inline constexpr uint64_t kStemSite = 0, kDecoderStemSite = 1, kHeadSite = 2, kFirstBlockSite = 8;

nn::NormOptions norm_options(const ModelConfig& config);
// The head over the vocabulary. A tied one shares `tokens`, or where the stem is held elsewhere (null) has a copy of
// the table, which those who hold the two keep equal.
nn::Head vocabulary_head(nn::ParameterList& list, const ModelConfig& config, bool bias, nn::Parameter* tokens);
// `index` counts the blocks of the model, for names and dropout sites. With scaled_residual, projections into the
// stream begin at init_std/√(2·layers) (Radford et al. 2019).
nn::BlockOptions block_options(const ModelConfig& config, int64_t index, bool causal, bool cross, bool scaled_residual);

}  // namespace esp::model
