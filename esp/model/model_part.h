// The part of a model on one rank: its pipeline units (stem, blocks, head) and its shards. Default: all of it.
#pragma once

#include <vector>

#include "esp/nn/shard.h"

namespace esp::model {

struct ModelPart {
  nn::ModelShards shares;
  bool stem = true, head = true;
  bool all_blocks = true;
  std::vector<nn::IndexRange> blocks;  // if not all: runs of blocks, in order

  bool has_block(int64_t index) const {
    if (all_blocks) return true;
    for (const nn::IndexRange& run : blocks)
      if (index >= run.begin && index < run.end) return true;
    return false;
  }
};

}  // namespace esp::model
