// Engine: the training of one rank. It owns the rank's part of the model, its memory, threads, optimizer and data, and
// runs the training step.
//
// Used by one thread. `step` reads this replica's share of one global batch, runs the micro-batches forward and
// backward, and updates the parameters. Losses and gradients are divided by the number of counted tokens in the whole
// batch, so the split into micro-batches and ranks does not change the result. The sync strategy (esp/sync)
// communicates between replicas. The model-parallel ops and the pipeline (esp/parallel) communicate within a replica.
// The engine itself exchanges only the token count at the start of a step and a few statistics at its end. After the
// first step it allocates no memory.
#pragma once

#include <memory>

#include "esp/base/log.h"
#include "esp/data/data_loader.h"
#include "esp/device/pool.h"
#include "esp/model/model.h"
#include "esp/obs/flight_recorder.h"
#include "esp/obs/spans.h"
#include "esp/optim/gradients.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/strategy.h"
#include "esp/sync/tier/offload.h"
#include "esp/train/data_pipeline.h"
#include "esp/train/device_context.h"
#include "esp/train/global_grad_norm.h"
#include "esp/train/injected_fault.h"
#include "esp/train/micro_batch_runner.h"
#include "esp/train/rank_partition.h"
#include "esp/train/run_config.h"
#include "esp/train/sample_log.h"
#include "esp/train/step_request.h"

namespace esp::comm {
class StallDetector;  // declared in comm/stall_detector.h
}

namespace esp::train {

struct StepResult {
  double loss = 0;       // mean over counted tokens
  double grad_norm = 0;  // norm of the gradient of the mean loss, before clipping
  double lr = 0;
  int64_t tokens = 0;     // tokens read, padding included
  bool skipped = false;   // a gradient was not finite, so nothing was updated
  double exposed_ms = 0;  // time this rank waited for communication
  int slowest_rank = 0;   // the rank that computed for the longest time
  double waited_ms = 0;   // mean time that the other ranks waited for slowest_rank
  // the requests of all ranks combined: stop if any rank requests it, save what rank 0 requests, the largest costs
  StepRequest decision;
  std::vector<std::string> notes;  // texts of the sync strategy for the log
};

// This rank's position in the distributed job. Owns nothing. With a single rank `ranks` may be null.
struct JobContext {
  comm::Communicator* ranks = nullptr;
  int local_size = 1;                     // number of ranks on this host
  obs::FlightRecorder* flight = nullptr;  // records events of the communicators, for traces; may be null
  comm::StallDetector* stalls = nullptr;  // the engine reports its current phase to it; may be null
  InjectedFault fault;                    // only for tests
  int rank() const { return ranks ? ranks->rank() : 0; }
  int size() const { return ranks ? ranks->size() : 1; }
};

// Parameters that have the same replica group, with their strategy and optimizer. The model is one group. With expert
// parallelism the experts are a second group, with fewer replicas.
struct ParameterGroup {
  // The parameters that the optimizer updates. They are on the host if synchronisation happens there.
  nn::ParameterList* parameters = nullptr;
  nn::ParameterList* on_device = nullptr;  // their copy on the device, used to compute; null: `parameters` is used
  tensor::Context context;                 // memory context of `parameters`
  std::unique_ptr<sync::Strategy> strategy;
  // reduces gradients over the tensor-parallel ranks; null: no gradient needs this
  std::unique_ptr<parallel::PartialGradients> partial;
  std::unique_ptr<optim::Optimizer> optimizer;
};

class Engine {
 public:
  // Fills in config values that are left open (vocab, micro_batch). `trace` may be null, else it outlives the engine.
  Engine(RunConfig& config, const Log& log, const JobContext& job = {}, obs::TraceRow* trace = nullptr);
  ~Engine();

  StepResult step(const StepRequest& request = {});
  // Mean loss over the first `batches` batches of held-out data; NaN without held-out data.
  double evaluate(int64_t batches);

  int64_t num_steps() const { return step_; }
  model::Model& model() { return *model_; }
  // The first group is the model. If the experts are a second group, the first group does not contain them.
  std::span<ParameterGroup> parameter_groups() { return parameter_groups_; }
  sync::Strategy& strategy() { return *parameter_groups_.front().strategy; }
  const std::string& method() const { return config_.sync.method; }
  sync::Offload* offload() { return offload_.get(); }
  optim::Optimizer& optimizer() { return *parameter_groups_.front().optimizer; }
  optim::LossScale& loss_scale() { return loss_scale_; }
  const tensor::Context& context() const { return context_; }
  // Host memory context with this rank's threads.
  tensor::Context host() { return {device::host_side(context_.stream), &host_pool_}; }
  device::MemoryAccount& account() { return account_; }
  const device::MemoryPool& pool() const { return pool_; }
  const DataPipeline& data_pipeline() const { return *data_pipeline_; }
  const JobContext& job() const { return job_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  // Communicators to the previous and the next pipeline stage, with their names. Empty without a pipeline.
  std::vector<std::pair<std::string_view, const comm::Communicator*>> pipeline_communicators() const {
    return micro_batches_->communicators();
  }
  int64_t num_parameters() const;  // number of parameters of the whole model
  uint64_t next_sample() const {
    return static_cast<uint64_t>(step_) * static_cast<uint64_t>(config_.train.global_batch);
  }
  int64_t tokens_per_step() const;
  // Measures the bandwidth of pinned copies between host and device. Call while nothing else uses the link.
  device::LinkRates measure_host_link();
  void resume_at(int64_t step);  // continues after `step` steps, with the data that follows

 private:
  int64_t share() const { return config_.train.global_batch / mesh_.shape().dp; }
  bool reports_loss() const;
  BatchRows rows_of(const data::Batch& batch, int64_t first, int64_t num_micro_batches, bool training);
  double run(const data::Batch& batch, int64_t first, int64_t num_micro_batches, bool training, double scale);
  double sum_over(parallel::MeshAxis axis, double value) const;
  void partition(const RunConfig& config, const model::ModelConfig& shape);
  double exposed_ms() const;
  double sum_of_squares();
  std::string describe_non_finite_gradients();
  std::string describe_non_finite_loss(const data::Batch* batch, bool look);
  sync::ReductionScope reduction_scope();
  double num_replicas_in_scope();
  double mean_over_replicas(double own);
  double scope_tokens(double own, double all);
  void set_up(RunConfig& config);
  // The optimizer updates `parameters`. The model computes with `computed_with`: the same list, or its copy on the
  // device.
  void add_parameter_group(RunConfig& config, nn::ParameterList& parameters, nn::ParameterList& computed_with,
                           parallel::MeshAxis replica_axis);
  std::unique_ptr<optim::Optimizer> make_optimizer(ParameterGroup& group);
  StepResult train_step(const StepRequest& request);
  uint64_t measure_memory_need() const;
  void exchange_step_stats(StepResult& result, double loss, double busy_ms, const StepRequest& request);

  const RunConfig& config_;
  device::MemoryAccount account_;
  device::ThreadPool threads_;
  DeviceContext device_;
  std::vector<std::string> notes_;  // texts that the first step passes on to the log
  // Communicator for device memory of GPUs; null: the job's communicator can use device memory.
  const std::unique_ptr<comm::Communicator> staged_;
  const JobContext job_;
  const std::unique_ptr<comm::Communicator> workers_;  // the ranks that compute; null: all ranks of the job compute
  const parallel::Mesh mesh_;                          // mesh over the ranks that compute
  device::MemoryPool pool_, host_pool_;
  tensor::Context context_;
  std::unique_ptr<DataPipeline> data_pipeline_;
  std::unique_ptr<parallel::ModelParallelOps> regions_;  // null: nn::single_device_ops
  std::unique_ptr<TokenShard> tokens_;
  std::vector<ModelChunk> chunks_;  // model chunks of this pipeline stage
  // host_model_ holds parameters only. It exists if synchronisation happens on the host; else it is null.
  std::unique_ptr<model::Model> model_, host_model_;
  std::unique_ptr<sync::Offload> offload_;  // null: nothing is offloaded
  std::vector<ParameterGroup> parameter_groups_;
  std::unique_ptr<MicroBatchRunner> micro_batches_;
  std::unique_ptr<GlobalGradNorm> norm_;
  optim::LossScale loss_scale_;
  std::unique_ptr<data::DataLoader> loader_;
  std::unique_ptr<SampleLog> sample_log_;  // null if log.samples is off
  data::Batch eval_batch_;
  std::vector<double> step_stats_;  // statistics of all ranks at the end of a step
  obs::TraceRow* trace_;
  int64_t step_ = 0;
  int steps_done_ = 0;           // number of steps that this object has made
  bool loss_was_finite_ = true;  // true if the loss of the last step was finite
};

// Number of cores on which this process may run.
int available_cores();

}  // namespace esp::train
