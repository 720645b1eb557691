// The part of a model that one holder has: of its row of stem, blocks and head, and of what its holders divide. By
// default all of it.
#pragma once

#include <vector>

#include "esp/nn/share.h"

namespace esp::model {

struct Part {
  nn::Shares shares;
  bool stem = true, head = true;
  bool all_blocks = true;
  std::vector<nn::Interval> blocks;  // where not all: runs of blocks, in order

  bool has_block(int64_t index) const {
    if (all_blocks) return true;
    for (const nn::Interval& run : blocks)
      if (index >= run.begin && index < run.end) return true;
    return false;
  }
};

}  // namespace esp::model
