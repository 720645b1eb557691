// What both ways of running micro-batches share, and the one for a stage of several.
#pragma once

#include "esp/train/micro_batches.h"

namespace esp::train {

struct MicroBatch {
  nn::Pass pass;  // without a tape
  model::Batch rows;
  // A rank without rows of its own (evaluation) goes along with the others on the first, whose loss is not counted.
  bool extra = false;
};
// Rows [first, first + count) of a host batch, lent to the model.
model::Batch rows_of(const data::Batch& batch, int64_t first, int64_t count, int64_t seq_len);
MicroBatch micro_batch(const MicroBatchSetup& setup, const data::Batch& batch, const Rows& rows, int64_t index,
                       bool training);

std::unique_ptr<MicroBatches> make_pipelined(const MicroBatchSetup& setup);

}  // namespace esp::train
