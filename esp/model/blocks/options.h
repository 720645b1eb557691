// From a model's config to the options of its layers.
#pragma once

#include "esp/model/config.h"
#include "esp/nn/layers/block.h"

namespace esp::model {

// Dropout sites: the stems first, then the blocks, so that no two places draw alike.
inline constexpr uint64_t kStemSite = 0, kDecoderStemSite = 1, kHeadSite = 2, kFirstBlockSite = 8;

nn::NormOptions norm_options(const ModelConfig& config);
// `index` counts the blocks of the model, for names and dropout sites. With scaled_residual, projections into the
// stream begin at init_std/√(2·layers) (Radford et al. 2019).
nn::BlockOptions block_options(const ModelConfig& config, int64_t index, bool causal, bool cross, bool scaled_residual);

}  // namespace esp::model
