// One rank's training: the model, its memory and threads, its optimizer and its data, and the step that joins them.
//
// Owned by one thread. `step` reads one global batch, runs its micro-batches forward and backward, and updates; losses
// and gradients are normalised by the tokens counted over the whole batch, so the split into micro-batches does not
// show. After the first step nothing allocates.
#pragma once

#include <memory>

#include "esp/base/log.h"
#include "esp/data/loader.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/obs/spans.h"
#include "esp/optim/gradients.h"
#include "esp/optim/optimizer.h"
#include "esp/train/feed.h"
#include "esp/train/run_config.h"

namespace esp::train {

struct StepResult {
  double loss = 0;       // mean over counted tokens
  double grad_norm = 0;  // before clipping, of the mean loss
  double lr = 0;
  int64_t tokens = 0;    // read, padding included
  bool skipped = false;  // a gradient was not finite: nothing was updated
};

class Engine {
 public:
  // Settles the config's open values (vocab, batch, threads) in place. The tracer, where given, outlives the engine.
  Engine(RunConfig& config, const Log& log, obs::TraceRow* trace = nullptr);
  ~Engine();

  StepResult step();
  // Mean loss over `batches` batches of held-out data from its beginning; NaN when there is none.
  double evaluate(int64_t batches);

  int64_t num_steps() const { return step_; }
  model::Model& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::LossScale& loss_scale() { return loss_scale_; }
  const tensor::Context& context() const { return context_; }
  device::MemoryAccount& account() { return account_; }
  const device::Pool& pool() const { return pool_; }
  const Feed& feed() const { return *feed_; }
  uint64_t next_sample() const {
    return static_cast<uint64_t>(step_) * static_cast<uint64_t>(config_.train.global_batch);
  }
  int64_t tokens_per_step() const;
  void resume_at(int64_t step);  // the next step is this one, and its data follow

 private:
  double run_micro_batches(const data::Batch& batch, bool training, double scale);

  const RunConfig& config_;
  device::MemoryAccount account_;
  device::ThreadPool threads_;
  device::Pool pool_;
  tensor::Context context_;
  std::unique_ptr<Feed> feed_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::LossScale loss_scale_;
  std::unique_ptr<data::Loader> loader_;
  data::Batch eval_batch_;
  autograd::Tape tape_;
  obs::TraceRow* trace_;
  int64_t step_ = 0;
};

// The cores this process may use.
int available_cores();

}  // namespace esp::train
