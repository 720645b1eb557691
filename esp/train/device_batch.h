// DeviceBatch: a batch on the model's device. On the CPU it references the given batch, which must stay valid while it
// is used. On a GPU it is a copy that is complete before the first micro-batch, so that no micro-batch waits for a
// transfer; its memory is reused in every step.
#pragma once

#include "esp/data/batch.h"
#include "esp/model/model.h"

namespace esp::train {

class DeviceBatch {
 public:
  DeviceBatch(const tensor::Context& context, const model::ModelConfig& config) : context_(context), config_(config) {}

  // Loads a batch. UsageError if a token id is outside the model's vocabulary; the message names the id.
  void load(const data::Batch& batch);
  int64_t num_rows() const { return batch_->B; }
  const void* inputs() const { return inputs_.data(); }  // device address of the input ids
  // Returns `count` sequences that start at index `first`. `seq_len` is the length of a full sequence.
  model::ModelBatch rows(int64_t first, int64_t count, int64_t seq_len) const;

 private:
  const tensor::Context context_;
  const model::ModelConfig& config_;
  const data::Batch* batch_ = nullptr;
  tensor::Tensor inputs_, targets_, decoder_inputs_, lengths_;  // all rows of the batch, flat
};

}  // namespace esp::train
