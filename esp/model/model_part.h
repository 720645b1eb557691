// The part of a model on one rank: its pipeline units (stem, blocks, head) and its shards. Default: the whole model.
#pragma once

#include <vector>

#include "esp/nn/shard.h"

namespace esp::model {

struct ModelPart {
  nn::ModelShards shards;
  bool stem = true, head = true;
  bool all_blocks = true;
  std::vector<nn::IndexRange> blocks;  // ranges of blocks on this rank, in order; ignored if all_blocks

  bool has_block(int64_t index) const {
    if (all_blocks) return true;
    for (const nn::IndexRange& range : blocks)
      if (index >= range.begin && index < range.end) return true;
    return false;
  }
};

}  // namespace esp::model
