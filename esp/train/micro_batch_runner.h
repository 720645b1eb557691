// MicroBatchRunner: runs the micro-batches of a step forward and backward through this rank's part of the model.
//
// Without a pipeline, the micro-batches run one after another, each in its own pass of the sync strategy. A pipeline
// stage runs its schedule (parallel/pp) in one pass of the strategy; gradients are reduced after the last micro-batch
// has computed them. In both cases gradients accumulate in micro-batch order. One thread; all referenced objects
// outlive the runner.
#pragma once

#include <memory>

#include "esp/data/batch.h"
#include "esp/model/model.h"
#include "esp/obs/spans.h"
#include "esp/parallel/model_parallel_ops.h"
#include "esp/sync/strategy.h"
#include "esp/train/non_finite_search.h"
#include "esp/train/rank_partition.h"

namespace esp::train {

// The rows of the global batch that are run, and scalars of the step.
struct BatchRows {
  int64_t first = 0;              // number of the first row in the global batch; the dropout masks depend on it
  int64_t num_micro_batches = 1;  // the same number on every rank, even on ranks with fewer rows
  int64_t seq_len = 0;            // length of a full sequence; with context parallelism this rank has only a part of it
  int64_t step = 0;
  double router_scale = 0;  // value of nn::ForwardContext::router_scale
};

class MicroBatchRunner {
 public:
  virtual ~MicroBatchRunner() = default;
  // Returns the sum of the losses of this rank's targets; 0 if this rank does not have the head. Gradients are
  // multiplied by `scale`.
  virtual double run(const data::Batch& batch, const BatchRows& rows, bool training, double scale) = 0;
  // Call after a training run, before the parameters change. Returns the first part of the model on this rank at which
  // the loss becomes non-finite.
  virtual NonFinitePart find_non_finite(const data::Batch& batch, const BatchRows& rows) = 0;
  virtual double exposed_ms() const { return 0; }  // time that this rank waited for other stages since reset_times()
  virtual void reset_times() {}
  // Communicators that belong to the runner, with their names for reports.
  virtual std::vector<std::pair<std::string_view, const comm::Communicator*>> communicators() const { return {}; }
};

struct MicroBatchSetup {
  const RunConfig* config = nullptr;
  const parallel::Mesh* mesh = nullptr;
  model::Model* model = nullptr;
  std::vector<sync::Strategy*> strategies;
  const nn::ParallelOps* regions = nullptr;
  std::vector<parallel::PartialGradients*> partial;  // empty: no gradient needs a reduction over tensor-parallel ranks
  // true: gradients are reduced after every micro-batch; false: only after the last one
  bool reduce_every_micro_batch = false;
  const nn::TokenMap* tokens = nullptr;  // the tokens of each row that this rank has; null: all
  std::vector<ModelChunk> chunks;        // model chunks of this stage
  tensor::Context context;
  obs::TraceRow* trace = nullptr;
};
// begin_pass and end_pass call all strategies. After an error between the two calls, the pass remains open.
void begin_pass(const MicroBatchSetup& setup, const sync::PassOptions& pass);
void end_pass(const MicroBatchSetup& setup);

std::unique_ptr<MicroBatchRunner> make_micro_batch_runner(const MicroBatchSetup& setup);

}  // namespace esp::train
