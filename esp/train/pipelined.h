// What both ways of running micro-batches share, and the one for a stage of several.
#pragma once

#include "esp/train/micro_batches.h"
#include "esp/train/placed.h"

namespace esp::train {

struct MicroBatch {
  nn::ForwardContext pass;  // without a tape
  model::ModelBatch rows;
  // A rank without rows of its own (evaluation) goes along with the others on the first, whose loss is not counted.
  bool extra = false;
};
MicroBatch micro_batch(const MicroBatchSetup& setup, const Placed& batch, const Rows& rows, int64_t index,
                       bool training);
// As it was when it trained: what was dropped is dropped again. Nothing else of a training pass is needed.
MicroBatch searched_micro_batch(const MicroBatchSetup& setup, const Placed& batch, const Rows& rows, int64_t index);

std::unique_ptr<MicroBatches> make_pipelined(const MicroBatchSetup& setup);

}  // namespace esp::train
