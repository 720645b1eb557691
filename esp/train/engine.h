// One rank's training: its part of the model, its memory and threads, its optimizer and its data, and the step that
// joins them.
//
// Owned by one thread. `step` reads the rows of its copy's share of one global batch, runs the micro-batches forward
// and backward, and updates; losses and gradients are normalised by the tokens counted over the whole batch, so neither
// the split into micro-batches nor that over ranks shows. What copies say to each other is the strategy's (esp/sync),
// what holders of one copy say the regions' and the pipeline's (esp/parallel), but for the count at the beginning of a
// step and a few words at its end. After the first step nothing allocates.
#pragma once

#include <memory>

#include "esp/base/log.h"
#include "esp/data/loader.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/obs/flight_recorder.h"
#include "esp/obs/spans.h"
#include "esp/optim/gradients.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/strategy.h"
#include "esp/sync/tier/offload.h"
#include "esp/train/feed.h"
#include "esp/train/injected_fault.h"
#include "esp/train/micro_batches.h"
#include "esp/train/model_norm.h"
#include "esp/train/place.h"
#include "esp/train/run_config.h"
#include "esp/train/sample_log.h"
#include "esp/train/split.h"
#include "esp/train/step_notice.h"

namespace esp::comm {
class StallDetector;  // comm/stall_watch.h
}

namespace esp::train {

struct StepResult {
  double loss = 0;       // mean over counted tokens
  double grad_norm = 0;  // before clipping, of the mean loss
  double lr = 0;
  int64_t tokens = 0;              // read, padding included
  bool skipped = false;            // a gradient was not finite: nothing was updated
  double exposed_ms = 0;           // this rank waited for communication
  int slowest_rank = 0;            // the one that computed longest
  double waited_ms = 0;            // the other ranks waited for it, on average
  StepNotice agreed;               // by all: some rank's stop, the first rank's save, the largest costs
  std::vector<std::string> notes;  // what the strategy decided, for the log
};

// Where this rank stands among those of the run; the communicator is lent and may be null for one alone.
struct Standing {
  comm::Communicator* ranks = nullptr;
  int local_size = 1;                     // ranks on this host
  obs::FlightRecorder* flight = nullptr;  // what the communicators noted, for traces; may be null
  comm::StallDetector* stalls = nullptr;  // is told what this rank is doing; may be null
  InjectedFault fault;                    // for tests
  int rank() const { return ranks ? ranks->rank() : 0; }
  int size() const { return ranks ? ranks->size() : 1; }
};

// Parameters that the same ranks hold copies of, and what becomes of them: those of the model, and where experts are
// divided theirs, whose copies are fewer.
struct Holding {
  nn::ParameterList* parameters = nullptr;  // whose values are updated: the host's where copies agree there
  nn::ParameterList* on_device = nullptr;   // what is computed with then; null: the same
  tensor::Context context;                  // of the former
  std::unique_ptr<sync::Strategy> strategy;
  std::unique_ptr<parallel::PartialGradients> partial;  // null: every gradient is whole
  std::unique_ptr<optim::Optimizer> optimizer;
};

class Engine {
 public:
  // Settles the config's open values (vocab, batch, threads) in place. The tracer, where given, outlives the engine.
  Engine(RunConfig& config, const Log& log, const Standing& standing = {}, obs::TraceRow* trace = nullptr);
  ~Engine();

  StepResult step(const StepNotice& notice = {});
  // Mean loss over `batches` batches of held-out data from its beginning; NaN when there is none.
  double evaluate(int64_t batches);

  int64_t num_steps() const { return step_; }
  model::Model& model() { return *model_; }
  std::span<Holding> holdings() { return holdings_; }  // the model's first
  sync::Strategy& strategy() { return *holdings_.front().strategy; }
  const std::string& method() const { return config_.sync.method; }
  sync::Offload* offload() { return offload_.get(); }
  optim::Optimizer& optimizer() { return *holdings_.front().optimizer; }
  optim::LossScale& loss_scale() { return loss_scale_; }
  const tensor::Context& context() const { return context_; }
  // Memory beside the device's, and who works on it.
  tensor::Context host() { return {device::host_side(context_.stream), &host_pool_}; }
  device::MemoryAccount& account() { return account_; }
  const device::MemoryPool& pool() const { return pool_; }
  const Feed& feed() const { return *feed_; }
  const Standing& standing() const { return standing_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  // Lines to the stages before and after, by name; none without a pipeline.
  std::vector<std::pair<std::string_view, const comm::Communicator*>> pipe_lines() const {
    return micro_batches_->lines();
  }
  int64_t num_parameters() const;  // of the whole model
  uint64_t next_sample() const {
    return static_cast<uint64_t>(step_) * static_cast<uint64_t>(config_.train.global_batch);
  }
  int64_t tokens_per_step() const;
  device::LinkRates link_alone();  // what the host's link gives to a copy of pinned memory and nothing else, now
  void resume_at(int64_t step);    // the next step is this one, and its data follow

 private:
  int64_t share() const { return config_.train.global_batch / mesh_.shape().dp; }
  bool speaks_for_loss() const;
  Rows rows_of(const data::Batch& batch, int64_t first, int64_t num_passes, bool training);
  double run(const data::Batch& batch, int64_t first, int64_t num_passes, bool training, double scale);
  double summed_over(parallel::MeshAxis axis, double value) const;
  void split(const RunConfig& config, const model::ModelConfig& shape);
  double exposed_ms() const;
  double sum_of_squares();
  std::string units_not_finite();
  std::string loss_not_finite(const data::Batch* batch, bool look);
  sync::ReductionScope reduction_scope();
  double copies_together();
  double mean_of_copies(double own);
  double scope_tokens(double own, double all);
  void set_up(RunConfig& config);
  // `parameters` are updated; `computed_with` are the same, or their copy on the device.
  void hold(RunConfig& config, nn::ParameterList& parameters, nn::ParameterList& computed_with,
            parallel::MeshAxis copies);
  std::unique_ptr<optim::Optimizer> make_optimizer(Holding& holding);
  StepResult train_step(const StepNotice& notice);
  uint64_t measured_need() const;
  void exchange(StepResult& result, double loss, double busy_ms, const StepNotice& notice);

  const RunConfig& config_;
  device::MemoryAccount account_;
  device::ThreadPool threads_;
  Place place_;
  std::vector<std::string> notes_;                    // for the log of the first step
  const std::unique_ptr<comm::Communicator> staged_;  // between GPUs; null: the standing's moves what we compute with
  const Standing standing_;
  const std::unique_ptr<comm::Communicator> workers_;  // null: those of the run
  const parallel::Mesh mesh_;                          // of those that compute
  device::MemoryPool pool_, host_pool_;
  tensor::Context context_;
  std::unique_ptr<Feed> feed_;
  std::unique_ptr<parallel::ParallelRegions> regions_;  // null: nn::single_device_ops
  std::unique_ptr<HeldTokens> tokens_;
  std::vector<Piece> pieces_;                         // of this stage
  std::unique_ptr<model::Model> model_, host_model_;  // the latter's parameters alone, where copies agree on the host
  std::unique_ptr<sync::Offload> offload_;            // null: everything is on the device
  std::vector<Holding> holdings_;
  std::unique_ptr<MicroBatches> micro_batches_;
  std::unique_ptr<ModelNorm> norm_;
  optim::LossScale loss_scale_;
  std::unique_ptr<data::Loader> loader_;
  std::unique_ptr<SampleLog> sample_log_;  // null: nobody wants to know
  data::Batch eval_batch_;
  std::vector<double> words_;  // of all ranks, at the end of a step
  obs::TraceRow* trace_;
  int64_t step_ = 0;
  int steps_done_ = 0;           // by this engine
  bool loss_was_finite_ = true;  // of the last step
};

// The cores this process may use.
int available_cores();

}  // namespace esp::train
