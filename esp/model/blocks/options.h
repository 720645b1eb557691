// Converts a model's config to the options of its layers.
#pragma once

#include "esp/model/config.h"
#include "esp/nn/layers/block.h"
#include "esp/nn/layers/head.h"

namespace esp::model {

// Numbers of the dropout sites. Each site has a separate random stream. Stems and head use the numbers below; the
// blocks use the numbers from kFirstBlockSite on.
inline constexpr uint64_t kStemSite = 0, kDecoderStemSite = 1, kHeadSite = 2, kFirstBlockSite = 8;

nn::NormOptions norm_options(const ModelConfig& config);
// Adds the vocabulary head. A tied head shares the table `tokens`. `tokens` null: the stem is on another stage; the
// head then gets a replica of the table, and the two stages keep the replicas equal.
nn::Head vocabulary_head(nn::ParameterList& list, const ModelConfig& config, bool bias, nn::Parameter* tokens);
// Options of block `index` of the model; the index determines names and dropout sites. With scaled_residual,
// projections into the residual stream are initialised with standard deviation init_std/√(2·layers) (Radford et al.
// 2019).
nn::BlockOptions block_options(const ModelConfig& config, int64_t index, bool causal, bool cross, bool scaled_residual);

}  // namespace esp::model
