// Converts a model's config to the options of its layers.
#pragma once

#include "esp/model/config.h"
#include "esp/nn/layers/block.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

// Dropout sites: the stems first, then the blocks, each with its own random stream.
inline constexpr uint64_t kStemSite = 0, kDecoderStemSite = 1, kHeadSite = 2, kFirstBlockSite = 8;

nn::NormOptions norm_options(const ModelConfig& config);
// The vocabulary head. A tied head shares `tokens`, or, if the stem is on another stage (null), has a replica of the
// table that both stages keep equal.
nn::Head vocabulary_head(nn::ParameterList& list, const ModelConfig& config, bool bias, nn::Parameter* tokens);
// `index` counts the blocks of the model, for names and dropout sites. With scaled_residual, projections into the
// stream begin at init_std/√(2·layers) (Radford et al. 2019).
nn::BlockOptions block_options(const ModelConfig& config, int64_t index, bool causal, bool cross, bool scaled_residual);

}  // namespace esp::model
