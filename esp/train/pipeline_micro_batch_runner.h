// MicroBatch, which both kinds of runners use, and the micro-batch runner of a pipeline stage.
#pragma once

#include "esp/train/device_batch.h"
#include "esp/train/micro_batch_runner.h"

namespace esp::train {

struct MicroBatch {
  nn::ForwardContext pass;  // the caller must set its tape
  model::ModelBatch rows;
  // True in evaluation on a rank that has no row for this micro-batch. It runs the first row, because the other ranks
  // need its part of the collectives; the loss is not counted.
  bool extra = false;
};
MicroBatch micro_batch(const MicroBatchSetup& setup, const DeviceBatch& batch, const BatchRows& rows, int64_t index,
                       bool training);
// The micro-batch as it was in training, with the same dropout masks. Used to run it forward again, without
// recomputation.
MicroBatch replayed_micro_batch(const MicroBatchSetup& setup, const DeviceBatch& batch, const BatchRows& rows,
                                int64_t index);

std::unique_ptr<MicroBatchRunner> make_pipeline_micro_batch_runner(const MicroBatchSetup& setup);

}  // namespace esp::train
