// A stack of small MLPs with a classifier, partitioned into virtual stages. Tests and the figures of the lab use it as
// a small deterministic model. Weights and data are functions of the unit and the micro-batch, so every partition is
// the same model.
#pragma once

#include <deque>
#include <vector>

#include "esp/parallel/pp/runner.h"

namespace esp::parallel {

struct ToyOptions {
  int units = 4;  // number of MLPs, without the classifier
  int64_t rows = 6, width = 8, hidden = 12, classes = 5;
  bool uneven = false;  // odd micro-batches have one row fewer
  bool memory = false;  // every MLP also reads a memory tensor that the first virtual stage computes
  DType dtype = DType::f64;
};

class ToyStage final : public PipelineStage {
 public:
  // Virtual stage q contains the units [cuts[q], cuts[q + 1]).
  ToyStage(const tensor::Context& context, const ToyOptions& options, const ScheduleShape& shape, int stage,
           std::vector<int> cuts);

  StageTensorShapes input_shape(int chunk, int micro_batch) const override;
  StageTensorShapes output_shape(int chunk, int micro_batch) const override;
  ForwardResult forward(int chunk, int micro_batch, autograd::Tape& tape, const StageTensors& input) override;
  std::span<autograd::Weight* const> weights(int chunk) const override;

  struct ToyWeight {
    int unit;  // options.units: the classifier; -1: the layer that computes the memory tensor
    int part;
    autograd::Weight weight;
    int num_ready = 0;
  };
  std::deque<ToyWeight>& all() { return all_; }
  double loss() const { return loss_; }  // sum since the last call of begin_step
  void begin_step();                     // marks all gradients as zero

 private:
  ToyWeight& add(int chunk, int unit, int part, const tensor::Shape& shape);
  int64_t rows_of(int micro_batch) const { return options_.rows - (options_.uneven && micro_batch % 2 ? 1 : 0); }
  bool has_first(int chunk) const { return chunk == 0 && stage_ == 0; }
  bool has_last(int chunk) const { return chunk == shape_.chunks - 1 && stage_ == shape_.stages - 1; }

  const tensor::Context context_;
  const ToyOptions options_;
  const ScheduleShape shape_;
  const int stage_;
  std::deque<ToyWeight> all_;
  std::vector<std::vector<autograd::Weight*>> by_chunk_;
  std::vector<std::vector<autograd::Weight*>> units_;  // indexed by chunk; four weights per unit: w1 b1 w2 b2
  autograd::Weight *memory_weight_ = nullptr, *classifier_ = nullptr;
  std::vector<tensor::Tensor> inputs_, targets_;  // indexed by micro-batch; only on the stages that need them
  double loss_ = 0;
};

}  // namespace esp::parallel
