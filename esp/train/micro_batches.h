// How the micro-batches of a step go forward and backward through this rank's part of the model.
//
// One stage takes them one after another, each a pass of the strategy. A stage of several runs its list of actions
// (parallel/pp), all of them in one pass of the strategy: gradients then leave when the backward of the last
// micro-batch has made them. Either way gradients add up in the order of the micro-batches. One thread; what is lent
// outlives it.
#pragma once

#include <memory>

#include "esp/data/batch.h"
#include "esp/model/model.h"
#include "esp/obs/spans.h"
#include "esp/parallel/regions.h"
#include "esp/sync/strategy.h"
#include "esp/train/not_finite.h"
#include "esp/train/split.h"

namespace esp::train {

// Which rows of the global batch these are.
struct Rows {
  int64_t first = 0;       // of the global batch: keys of dropout
  int64_t num_passes = 1;  // the same on every rank, whatever rows it has
  int64_t seq_len = 0;     // of whole sequences, whatever part of them is held
  int64_t step = 0;
  double router_scale = 0;  // nn::ForwardContext::router_scale
};

class MicroBatches {
 public:
  virtual ~MicroBatches() = default;
  // The sum of the losses of the targets held, gradients multiplied by `scale`; zero where the head is elsewhere.
  virtual double run(const data::Batch& batch, const Rows& rows, bool training, double scale) = 0;
  // After a run that trained, with the values it had: where the loss ceased to be finite, among the parts held here.
  virtual FoundNotFinite first_not_finite(const data::Batch& batch, const Rows& rows) = 0;
  virtual double exposed_ms() const { return 0; }  // waited for other stages, since reset_times
  virtual void reset_times() {}
  // Communicators of its own, for reports.
  virtual std::vector<std::pair<std::string_view, const comm::Communicator*>> lines() const { return {}; }
};

struct MicroBatchSetup {
  const RunConfig* config = nullptr;
  const parallel::Mesh* mesh = nullptr;
  model::Model* model = nullptr;
  std::vector<sync::Strategy*> strategies;
  const nn::ParallelOps* regions = nullptr;
  std::vector<parallel::PartialGradients*> partial;  // none: gradients are whole
  bool every_pass_leaves = false;                    // gradients of every micro-batch are reduced, not of the last only
  const nn::TokenMap* tokens = nullptr;              // null: all
  std::vector<Piece> pieces;                         // of this stage
  tensor::Context context;
  obs::TraceRow* trace = nullptr;
};
// A pass of all strategies: what is between making and ending it. An error in between leaves it open.
void begin_pass(const MicroBatchSetup& setup, const sync::PassOptions& pass);
void end_pass(const MicroBatchSetup& setup);

std::unique_ptr<MicroBatches> make_micro_batches(const MicroBatchSetup& setup);

}  // namespace esp::train
