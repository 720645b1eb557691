// A batch where the model computes: on a CPU the batch itself, on a GPU a copy of it, made whole before the first
// micro-batch, so that none of them waits for one.
//
// The batch outlives its use here; on a GPU the memory is kept from step to step.
#pragma once

#include "esp/data/batch.h"
#include "esp/model/model.h"

namespace esp::train {

class Placed {
 public:
  Placed(const tensor::Context& context, const model::ModelConfig& config) : context_(context), config_(config) {}

  // UsageError names an id the model does not know.
  void put(const data::Batch& batch);
  int64_t num_rows() const { return batch_->B; }
  const void* inputs() const { return inputs_.data(); }  // where they lie
  // `count` sequences from `first` on; `seq_len` is that of whole sequences.
  model::ModelBatch rows(int64_t first, int64_t count, int64_t seq_len) const;

 private:
  const tensor::Context context_;
  const model::ModelConfig& config_;
  const data::Batch* batch_ = nullptr;
  tensor::Tensor inputs_, targets_, decoder_inputs_, lengths_;  // of all rows, flat
};

}  // namespace esp::train
