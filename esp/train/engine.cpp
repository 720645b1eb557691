#include "esp/train/engine.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "esp/base/error.h"
#include "esp/comm/nccl/nccl.h"
#include "esp/comm/staged.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/cuda/fp8_encode.h"
#include "esp/optim/lr_schedule.h"
#include "esp/parallel/textbook.h"
#include "esp/sync/host_strategy.h"
#include "esp/train/engine_options.h"
#include "esp/train/memory_budget.h"

namespace esp::train {
namespace {

using parallel::MeshAxis;

constexpr size_t kNumStepStats = 3;

int num_compute_threads(const RunConfig& config, const JobContext& job) {
  if (config.run.threads > 0) return static_cast<int>(config.run.threads);
  return std::max(1, available_cores() / job.local_size);
}

// True for sync methods that shard the gradients (ZeRO-2, ZeRO-3). With offload, each gradient shard is sent to the
// host as soon as it is reduced.
bool shards_gradients(const std::string& method) {
  return method == "zero2" || method == "zero3";
}

// Rank 0 first reads, tokenises and caches the data. Then the other ranks use this cache and do not log again.
std::unique_ptr<DataPipeline> make_data_pipeline_in_turn(RunConfig& config, const Log& log, const JobContext& job) {
  if (job.rank() != 0) job.ranks->barrier();
  auto feed = make_data_pipeline(config, job.rank() == 0 ? log : Log(LogLevel::off, job.rank()));
  if (job.rank() == 0 && job.ranks) job.ranks->barrier();
  return feed;
}

// Number of replicas of one model part on one host. This is the size of a "node" in ZeRO++.
int replicas_per_node(const RunConfig& config, const parallel::MeshShape& mesh, const JobContext& job) {
  const int per_node = config.comm.nodes > 0 ? job.size() / static_cast<int>(config.comm.nodes) : job.local_size;
  return std::clamp(per_node / mesh.tp, 1, mesh.replicas());
}

bool has_dedicated_servers(const RunConfig& config) {
  return config.sync.method == "ps" && config.sync.ps.server_ranks == "dedicated";
}

// With dedicated parameter servers, returns the communicator of the ranks that compute. Returns null on the servers,
// and if only one rank computes.
std::unique_ptr<comm::Communicator> make_worker_communicator(const RunConfig& config, const JobContext& job) {
  if (!has_dedicated_servers(config)) return nullptr;
  const int workers = layout_of(config, job.size()).mesh.size();
  auto all = job.ranks->split(job.rank() < workers ? 0 : -1, job.rank());
  return workers > 1 ? std::move(all) : nullptr;
}

parallel::MeshShape mesh_of(const RunConfig& config, const JobContext& job) {
  const parallel::MeshShape shape = layout_of(config, job.size()).mesh;
  return job.rank() < shape.size() ? shape : parallel::MeshShape();
}

// Only rank 0 uses the file of tuned GEMM algorithms, so that several ranks do not write it.
GpuOptions gpu_options(const RunConfig& config, const JobContext& job) {
  return {config.run.deterministic, config.train.precision == "tf32", config.train.precision == "fp8",
          job.rank() == 0 ? run_folder_of(config) + "/gemm_choices.txt" : ""};
}

// The communicator for this rank's device memory; null if the job's communicator can already use this memory. For GPUs
// it is NCCL if each rank has its own GPU, otherwise the host communicator with staging buffers.
std::unique_ptr<comm::Communicator> make_gpu_communicator(const RunConfig& config, const JobContext& job,
                                                          const device::Stream& stream, device::MemoryAccount& account,
                                                          std::vector<std::string>& notes) {
  const bool wished = config.comm.transport == "nccl";
  if (wished && !device::is_cuda(stream))
    throw UsageError("comm.transport = nccl: needs GPUs; with run.device = cpu use auto");
  if (!job.ranks || !device::is_cuda(stream)) return nullptr;
  std::string why = "comm.transport = " + config.comm.transport;
  if (wished || config.comm.transport == "auto") why = comm::nccl_unsupported_reason(*job.ranks, stream.device);
  if (wished && !why.empty()) throw UsageError(fmt::format("comm.transport = nccl: {}. Use auto", why));
  if (why.empty()) {
    notes.push_back(fmt::format("communication between GPUs: NCCL {}", comm::nccl_version()));
    return comm::make_nccl(*job.ranks, stream, account);
  }
  notes.push_back(fmt::format("communication between GPUs: through host memory ({})", why));
  return comm::make_staged(*job.ranks, stream, account);
}

// The key whose setting makes GPUs synchronise through host memory (compression, parameter server, …); empty: none.
std::string_view host_sync_key(const device::Stream& stream, const RunConfig& config) {
  if (!device::is_cuda(stream)) return {};
  if (config.sync.compress != "none") return "sync.compress";
  if (config.sync.quantise != "none") return "sync.quantise";
  if (config.sync.method == "ps") return "sync.method = ps";
  if (config.sync.method == "local" && config.sync.average_over == "servers") return "sync.average_over = servers";
  if (config.sync.method == "allreduce" && config.sync.buckets == "cycle") return "sync.buckets = cycle";
  return {};
}

void check_runs_on(const device::Stream& stream, const RunConfig& config) {
  if (!device::is_cuda(stream)) return;
  const std::string_view on_host = host_sync_key(stream, config);
  if (!on_host.empty() && config.sync.offload != "none")
    throw UsageError(fmt::format(
        "run.device = cuda: {} keeps weights and optimizer state on the host already; set sync.offload = none",
        on_host));
}

JobContext with_ranks(JobContext job, comm::Communicator* ranks) {
  if (ranks) job.ranks = ranks;
  return job;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Engine::Engine(RunConfig& config, const Log& log, const JobContext& job, obs::TraceRow* trace)
    : config_(config),
      threads_(num_compute_threads(config, job)),
      device_(config.run.device, account_, job.rank(), gpu_options(config, job)),
      staged_(make_gpu_communicator(config, job, device_.stream(&threads_), account_, notes_)),
      job_(with_ranks(job, staged_.get())),
      workers_(make_worker_communicator(config, job_)),
      mesh_(mesh_of(config, job_), has_dedicated_servers(config) ? workers_.get() : job_.ranks),
      pool_(account_, device::MemoryTier::device, device_.memory()),
      host_pool_(account_, device::MemoryTier::host, device_.host_memory()),
      context_{device_.stream(&threads_), &pool_},
      data_pipeline_(make_data_pipeline_in_turn(config, log, job)),
      loss_scale_(config.train.precision == "fp16" ? optim::LossScale::dynamic() : optim::LossScale::fixed()),
      trace_(trace) {
  check_runs_on(context_.stream, config);
  if (config.train.micro_batch == 0) config.train.micro_batch = share();
  const model::ModelConfig shape = model_config(config.model);
  shape.check();
  partition(config, shape);
  account_.set_budget(device::MemoryTier::device, static_cast<uint64_t>(config.run.device_memory_mb * (1 << 20)));
  check_memory_budget(config, model_->parameters(), mesh_.size(MeshAxis::replicas));
  try {
    set_up(config);
  } catch (const DeviceError& error) {
    throw_if_over_budget(config, model_->parameters(), account_, error, 0);
    throw;
  }
  if (offload_)
    for (std::string& line : offload_->notes()) notes_.push_back(std::move(line));
  step_stats_.resize(static_cast<size_t>(job.size()) * kNumStepStats);
  data::DataLoaderOptions loading;
  loading.B = share();
  loading.world = mesh_.shape().dp;  // all ranks of one replica read the same rows
  loading.rank = mesh_.coordinates().dp;
  loader_ = std::make_unique<data::DataLoader>(*data_pipeline_->train, loading);
  if (config.log.samples)
    sample_log_ = std::make_unique<SampleLog>(run_folder_of(config), job.rank(), mesh_.coordinates().dp);
}

Engine::~Engine() = default;

// Determines which part of the model and of each sequence this rank has.
void Engine::partition(const RunConfig& config, const model::ModelConfig& shape) {
  const parallel::MeshShape& mesh = mesh_.shape();
  parallel::ModelParallelOptions options = region_options(config);
  options.trace = trace_;
  if (config.train.activations == "textbook")
    regions_ = parallel::make_textbook_ops(mesh_, options);
  else if (mesh.tp > 1 || mesh.cp > 1 || mesh.ep > 1)
    regions_ = parallel::make_model_parallel_ops(mesh_, options);
  const bool causal = shape.arch != "bert" && shape.arch != "t5";
  tokens_ = std::make_unique<TokenShard>(
      parallel::local_tokens(mesh, mesh_.coordinates(), options, shape.seq_len, causal), mesh_.coordinates().cp == 0);
  chunks_ = stage_chunks(partition_model(shape, mesh.pp * static_cast<int>(config.parallel.interleave)),
                         mesh_.coordinates().pp, mesh.pp);
  const auto make = [&] {
    return model::make_model(shape,
                             make_model_part(chunks_, {{mesh_.coordinates().tp, mesh.tp},
                                                       {mesh_.index(MeshAxis::expert), mesh_.size(MeshAxis::expert)}}));
  };
  model_ = make();
  if (const std::string_view what = host_sync_key(context_.stream, config); !what.empty()) {
    host_model_ = make();
    notes_.push_back(fmt::format(
        "{}: weights, encoded values and optimizer state are on the host; the GPU computes with a copy of the weights",
        what));
  }
}

// Allocates all device memory that is kept for the whole run.
void Engine::set_up(RunConfig& config) {
  if (config.sync.offload != "none")
    offload_ = std::make_unique<sync::Offload>(account_, file_options(config), device_.host_memory());
  model::Model& updated = host_model_ ? *host_model_ : *model_;
  add_parameter_group(config, updated.parameters(), model_->parameters(), MeshAxis::replicas);
  if (model_->experts()) add_parameter_group(config, *updated.experts(), *model_->experts(), MeshAxis::expert_data);
  norm_ = std::make_unique<GlobalGradNorm>(mesh_, *model_);
  MicroBatchSetup passes;
  passes.config = &config_;
  passes.mesh = &mesh_;
  passes.model = model_.get();
  for (const ParameterGroup& group : parameter_groups_) {
    passes.strategies.push_back(group.strategy.get());
    if (group.partial) passes.partial.push_back(group.partial.get());
  }
  passes.regions = regions_ ? regions_.get() : &nn::single_device_ops();
  passes.reduce_every_micro_batch =
      shards_gradients(config.sync.method) && config.sync.accumulate != "local" && !host_model_;
  passes.tokens = tokens_->map();
  passes.chunks = chunks_;
  passes.context = context_;
  passes.trace = trace_;
  micro_batches_ = make_micro_batch_runner(passes);
}

void Engine::add_parameter_group(RunConfig& config, nn::ParameterList& parameters, nn::ParameterList& computed_with,
                                 MeshAxis replica_axis) {
  ParameterGroup group;
  group.parameters = &parameters;
  group.context = host_model_ ? host() : context_;
  sync::Setup setup;
  setup.ranks = has_dedicated_servers(config) ? job_.ranks : mesh_.group(replica_axis);
  setup.ranks_per_node = replicas_per_node(config, mesh_.shape(), job_);
  setup.gradients_to_sink = config.sync.offload != "none" && shards_gradients(config.sync.method);
  setup.parameters = &parameters;
  setup.context = group.context;
  setup.storage = storage_type(config.train.precision);
  setup.options = sync_options(config);
  // A tied embedding is on two stages, in a different bucket on each. Gradients are summed in rank order for all
  // buckets, so that both tables stay bitwise equal.
  if (mesh_.shape().pp > 1 && model_->config().tie_embeddings) setup.options.deterministic = true;
  setup.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(2 * config.comm.timeout_s));
  setup.trace = trace_;
  setup.offload = offload_.get();
  group.strategy = sync::make_strategy(setup);
  if (&parameters != &computed_with) {
    group.on_device = &computed_with;
    group.strategy =
        sync::make_host_strategy(std::move(group.strategy), parameters, computed_with, context_, setup.storage);
  }
  group.strategy->fill([&](nn::ParameterList::Unit& unit) {
    parameters.initialise(unit, static_cast<uint64_t>(config.run.seed), group.context.stream);
  });
  if (config.parallel.sequence)
    group.partial = parallel::make_partial_gradients(mesh_, computed_with, context_, setup.timeout);
  group.optimizer = make_optimizer(group);
  if (sync::DivergentReplicas* divergent = group.strategy->divergent_replicas()) divergent->attach(*group.optimizer);
  parameter_groups_.push_back(std::move(group));
}

std::unique_ptr<optim::Optimizer> Engine::make_optimizer(ParameterGroup& of) {
  optim::OptimizerOptions options = optimizer_options(config_.train);
  options.split_master = config_.sync.split_master;
  if (auto own = of.strategy->make_optimizer(options)) return own;
  if (config_.sync.offload == "none")
    return optim::make_optimizer(options, *of.parameters, of.context, of.strategy->optimizer_shards());
  sync::TierOptions tier;
  tier.placement = config_.sync.offload;
  tier.tile = config_.sync.offload_tile;
  tier.host_bytes = static_cast<uint64_t>(config_.sync.offload_host_mb * (1 << 20));
  tier.delay_after = config_.sync.delay_update;
  tier.early = config_.sync.update_early;
  tier.split_master = config_.sync.split_master;
  // With a GPU the host threads are free to run the optimizer. Without one they compute the model.
  if (device::is_cuda(context_.stream)) tier.host_threads = context_.stream.num_threads();
  tier.file = offload_->files();
  of.strategy->set_sink(offload_.get());
  return offload_->make_optimizer(options, *of.parameters, context_.stream, of.strategy->optimizer_shards(), tier);
}

int64_t Engine::tokens_per_step() const {
  const data::BatchShape shape = data_pipeline_->train->shape();
  return config_.train.global_batch * (shape.T + shape.T_decoder);
}

device::LinkRates Engine::measure_host_link() {
  const size_t bytes = (device::is_cuda(context_.stream) ? size_t{256} : size_t{16}) << 20;
  return device::measure_link(context_.stream, device_.memory(), device_.host_memory(), bytes);
}

void Engine::resume_at(int64_t step) {
  step_ = step;
  loader_->seek(next_sample());
  for (ParameterGroup& group : parameter_groups_) {
    if (sync::DivergentReplicas* divergent = group.strategy->divergent_replicas()) divergent->begin_at(step);
    if (sync::AsyncWorkers* workers = group.strategy->async_workers()) workers->begin_at(step);
  }
}

int64_t Engine::num_parameters() const {
  return model::parameter_count(model_->config());
}

double Engine::sum_over(MeshAxis axis, double value) const {
  if (comm::Communicator* ranks = mesh_.group(axis))
    ranks->all_reduce(&value, &value, 1, DType::f64, comm::ReduceOp::sum);
  return value;
}

// True on the rank that counts the loss of a target, so that it is counted once: on the last stage, the first rank of
// the tensor-parallel group.
bool Engine::reports_loss() const {
  return mesh_.coordinates().pp + 1 == mesh_.shape().pp && mesh_.coordinates().tp == 0;
}

BatchRows Engine::rows_of(const data::Batch& batch, int64_t first, int64_t num_micro_batches, bool training) {
  const double replicas = mesh_.shape().dp, in_scope = num_replicas_in_scope();
  const double router_scale =
      training ? loss_scale_.scale() / static_cast<double>(tokens_per_step()) * (replicas / in_scope) : 0;
  return {first, num_micro_batches, batch.shape.T, step_, router_scale};
}

double Engine::run(const data::Batch& batch, int64_t first, int64_t num_micro_batches, bool training, double scale) {
  const double sum =
      micro_batches_->run(tokens_->of(batch), rows_of(batch, first, num_micro_batches, training), training, scale);
  return reports_loss() ? sum : 0;
}

// Exchanges the statistics of the step between all ranks, as doubles.
void Engine::exchange_step_stats(StepResult& result, double loss, double busy_ms, const StepRequest& request) {
  const double mine[kNumStepStats] = {loss, busy_ms, pack(request)};
  if (job_.ranks) {
    job_.ranks->all_gather(mine, step_stats_.data(), kNumStepStats, DType::f64);
  } else {
    std::copy(std::begin(mine), std::end(mine), step_stats_.begin());
  }
  double longest = 0, busy = 0;
  for (size_t rank = 0; rank < step_stats_.size() / kNumStepStats; ++rank) {
    const double* words = step_stats_.data() + rank * kNumStepStats;
    result.loss += words[0];
    busy += words[1];
    if (words[1] > longest) {
      longest = words[1];
      result.slowest_rank = static_cast<int>(rank);
    }
    const StepRequest notice_of_rank = unpack(words[2]);
    if (rank == 0) result.decision.save = notice_of_rank.save;
    result.decision.stop = result.decision.stop || notice_of_rank.stop;
    result.decision.snapshot_cost_s = std::max(result.decision.snapshot_cost_s, notice_of_rank.snapshot_cost_s);
    result.decision.checkpoint_cost_s = std::max(result.decision.checkpoint_cost_s, notice_of_rank.checkpoint_cost_s);
  }
  const int others = job_.size() - 1;
  if (others > 0) result.waited_ms = (longest * job_.size() - busy) / others;
}

// Runs one step. The first two steps reach the peak memory need: the first one records the order in which parameters
// are used, and the second one prefetches by that order. So only they can exceed the memory budget.
StepResult Engine::step(const StepRequest& request) {
  try {
    StepResult result = train_step(request);
    ++steps_done_;
    return result;
  } catch (const DeviceError& error) {
    if (steps_done_ < 2) throw_if_over_budget(config_, model_->parameters(), account_, error, measure_memory_need());
    throw;
  }
}

// Peak device memory of two steps without a budget, in bytes. 0 if it cannot be measured (with several ranks, all would
// have to run these steps) or if no budget is set.
uint64_t Engine::measure_memory_need() const {
  if (job_.size() > 1 || config_.run.device_memory_mb == 0) return 0;
  RunConfig config = config_;
  config.run.device_memory_mb = 0;
  config.log.samples = false;
  try {
    Engine unlimited(config, Log());
    unlimited.resume_at(step_);
    for (int i = 0; i < 2; ++i) unlimited.step();
    return unlimited.account_.use(device::MemoryTier::device).peak;
  } catch (const Error&) {
    return 0;  // unknown: the error of the run is then reported without this number
  }
}

StepResult Engine::train_step(const StepRequest& request) {
  sync::AsyncWorkers* const workers = strategy().async_workers();
  const bool computes = !workers || !workers->is_server_only(), lockstep = !workers || workers->lockstep();
  const data::Batch* batch = nullptr;
  if (computes) {
    obs::Span span(trace_, "data", "host");
    batch = loader_->next();
    ESP_CHECK(batch, "the training data ended");
    if (sample_log_) sample_log_->note(step_ + 1, *batch);
  }
  const double own = batch ? static_cast<double>(batch->counted) : 0;
  const double counted = std::max(1.0, lockstep ? sum_over(MeshAxis::data, own) : own);
  const double scope_tokens = this->scope_tokens(own, counted);
  const int64_t begun = now_ns();
  for (ParameterGroup& group : parameter_groups_) group.strategy->begin_step();
  micro_batches_->reset_times();
  if (regions_) regions_->reset_times();
  StepResult result;
  result.notes = std::exchange(notes_, {});
  result.lr = learning_rate_at(config_.train, step_);
  result.tokens = tokens_per_step();
  const double scale = loss_scale_.scale();
  if (device::is_cuda(context_.stream)) kernel::cuda::update_scales(context_.stream);
  if (config_.sync.update_early) offload_->open_step(result.lr, 1 / scale);
  const double loss = batch ? run(*batch, mesh_.coordinates().dp * share(), share() / config_.train.micro_batch, true,
                                  scale / scope_tokens)
                            : 0;
  const double busy_ms = static_cast<double>(now_ns() - begun) * 1e-6 - exposed_ms();

  for (ParameterGroup& group : parameter_groups_) group.strategy->finish();
  if (lockstep) {
    exchange_step_stats(result, loss, busy_ms, request);
  } else {
    result.loss = loss;
    if (request.stop) workers->request_stop();
  }
  result.loss /= counted;
  obs::Span span(trace_, "optimizer", "compute");
  const double own_norm = std::sqrt(sum_of_squares()) / scale;
  // Each divergent replica clips by its local norm; the mean of all norms is reported. If one norm is not finite, the
  // mean is not finite, and all replicas skip the step.
  result.grad_norm = reduction_scope().all_replicas ? own_norm : mean_over_replicas(own_norm);
  result.skipped = !std::isfinite(result.grad_norm);
  if (result.skipped && config_.sync.update_early)
    throw Error(
        ExitCode::internal,
        fmt::format("{}, but sync.update_early has already applied the gradients. Resume from a checkpoint with a "
                    "lower train.lr",
                    describe_non_finite_gradients()));
  const bool finite = std::isfinite(result.loss);
  std::string why = result.skipped && finite ? describe_non_finite_gradients() : "";
  loss_scale_.update(result.skipped);
  const double factor = optim::clip_factor(own_norm, config_.train.clip) / scale;
  for (ParameterGroup& group : parameter_groups_) {
    if (!result.skipped) group.optimizer->step(result.lr, factor);
    group.strategy->after_step();
    for (std::string& note : group.strategy->take_notes()) result.notes.push_back(std::move(note));
  }
  // Only the first of several consecutive non-finite losses starts a search for its origin. All ranks search together,
  // because the loss is equal on all ranks.
  if (!finite) why = describe_non_finite_loss(batch, lockstep && loss_was_finite_);
  loss_was_finite_ = finite;
  if (result.skipped) result.notes.push_back(std::move(why));
  result.exposed_ms = exposed_ms();
  ++step_;
  if (!lockstep) result.decision.stop = workers->stops_before(step_);
  return result;
}

sync::ReductionScope Engine::reduction_scope() {
  sync::DivergentReplicas* divergent = strategy().divergent_replicas();
  return divergent ? divergent->reduction_scope() : sync::ReductionScope();
}

// Adds the values in replica order, so that the result does not depend on the transport.
double Engine::mean_over_replicas(double own) {
  comm::Communicator* ranks = mesh_.group(MeshAxis::data);
  if (!ranks) return own;
  ranks->all_gather(&own, step_stats_.data(), 1, DType::f64);
  double sum = 0;
  for (int replica = 0; replica < ranks->size(); ++replica) sum += step_stats_[static_cast<size_t>(replica)];
  return sum / ranks->size();
}

double Engine::num_replicas_in_scope() {
  const sync::ReductionScope scope = reduction_scope();
  return scope.all_replicas ? mesh_.shape().dp : (scope.group ? scope.group->size() : 1);
}

// Number of tokens that contribute to the summed gradient: those of all replicas, of one node, or of this replica only.
// `own`: tokens of this replica; `all`: tokens of all replicas.
double Engine::scope_tokens(double own, double all) {
  sync::DivergentReplicas* divergent = strategy().divergent_replicas();
  if (!divergent) return all;
  divergent->set_local_tokens(own);
  const sync::ReductionScope scope = divergent->reduction_scope();
  if (scope.all_replicas) return all;
  if (scope.group) scope.group->all_reduce(&own, &own, 1, DType::f64, comm::ReduceOp::sum);
  return std::max(1.0, own);
}

// Time in this step that this rank waited for other ranks, over all communicators.
double Engine::exposed_ms() const {
  double sum = micro_batches_->exposed_ms() + (regions_ ? regions_->exposed_ms() : 0);
  for (const ParameterGroup& group : parameter_groups_) sum += group.strategy->times().exposed_ms;
  return sum;
}

double Engine::sum_of_squares() {
  const std::vector<double>* experts = nullptr;
  if (parameter_groups_.size() > 1) experts = &parameter_groups_[1].strategy->sums_of_squares();
  return norm_->sum(parameter_groups_[0].strategy->sums_of_squares(), experts);
}

// Describes where the gradients became non-finite, from the last sums_of_squares. The backward pass spreads non-finite
// values from a unit to all earlier units. Therefore the last non-finite unit in model order is the first one that the
// backward pass reached.
std::string Engine::describe_non_finite_gradients() {
  std::vector<std::string> names;
  size_t others = 0;
  for (ParameterGroup& group : parameter_groups_) {
    const std::vector<double>& sums = group.strategy->sums_of_squares();
    const auto bad = [](double sum) { return !std::isfinite(sum); };
    const auto last = std::find_if(sums.rbegin(), sums.rend(), bad);
    if (last == sums.rend()) continue;
    names.push_back(group.parameters->units()[static_cast<size_t>(sums.rend() - last) - 1].name);
    others += static_cast<size_t>(std::count_if(last + 1, sums.rend(), bad));
  }
  if (names.empty()) return fmt::format("step {}: the gradient norm is not finite; the step is skipped", step_ + 1);
  return fmt::format("step {}: gradients are not finite, first in {} (backward order){}; the step is skipped",
                     step_ + 1, fmt::join(names, " and "),
                     others > 0 ? fmt::format(", then in {} more unit{}", others, others == 1 ? "" : "s") : "");
}

std::string Engine::describe_non_finite_loss(const data::Batch* batch, bool look) {
  NonFinitePart found = kNotSearched;
  if (look && batch)
    found = micro_batches_->find_non_finite(tokens_->of(*batch), rows_of(*batch, mesh_.coordinates().dp * share(),
                                                                         share() / config_.train.micro_batch, true));
  std::vector<NonFinitePart> all(static_cast<size_t>(job_.size()), found);
  if (look && job_.ranks) job_.ranks->all_gather(&found, all.data(), 1, DType::i64);
  const auto first = std::min_element(all.begin(), all.end());
  return fmt::format("step {}: the loss is not finite{}; the step is skipped", step_ + 1,
                     describe(*first, *model_, static_cast<int>(first - all.begin())));
}

double Engine::evaluate(int64_t batches) {
  if (!data_pipeline_->val) return std::numeric_limits<double>::quiet_NaN();
  obs::Span span(trace_, "evaluate", "compute");
  const sync::ScopedAverageWeights borrowed(strategy().divergent_replicas());
  sync::AsyncWorkers* const workers = strategy().async_workers();
  if (workers) workers->synchronise();
  const auto available = static_cast<int64_t>(data_pipeline_->val->samples_per_epoch());
  double sum = 0, counted = 0;
  const bool computes = !workers || !workers->is_server_only();
  for (int64_t first = 0; computes && first < std::min(batches * config_.train.global_batch, available);
       first += config_.train.global_batch) {
    const int64_t rows = std::min(config_.train.global_batch, available - first);
    const int dp = mesh_.shape().dp;
    const comm::Chunk mine = comm::chunk_of(static_cast<size_t>(rows), dp, mesh_.coordinates().dp);
    const auto at = std::min(static_cast<int64_t>(mine.offset), rows - 1);
    data::fill_batch(*data_pipeline_->val, static_cast<uint64_t>(first + at),
                     std::max<int64_t>(1, static_cast<int64_t>(mine.count)), eval_batch_);
    const auto most = static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(rows), dp, 0).count);
    const int64_t num_micro_batches = (most + config_.train.micro_batch - 1) / config_.train.micro_batch;
    const double loss = run(eval_batch_, at, num_micro_batches, false, 0);
    if (mine.count == 0) continue;
    sum += loss;
    counted += static_cast<double>(eval_batch_.counted);
  }
  if (job_.ranks) job_.ranks->all_reduce(&sum, &sum, 1, DType::f64, comm::ReduceOp::sum);
  counted = sum_over(MeshAxis::data, counted);
  return counted > 0 ? sum / counted : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace esp::train
