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
#include "esp/device/on_cuda.h"
#include "esp/kernel/cuda/fp8_codes.h"
#include "esp/optim/schedule.h"
#include "esp/parallel/textbook.h"
#include "esp/sync/on_host.h"
#include "esp/train/budget.h"
#include "esp/train/engine_options.h"

namespace esp::train {
namespace {

using parallel::MeshAxis;

constexpr size_t kNumWords = 3;

int threads_of(const RunConfig& config, const Standing& standing) {
  if (config.run.threads > 0) return static_cast<int>(config.run.threads);
  return std::max(1, available_cores() / standing.local_size);
}

// Stages that keep a share of the gradients only send it to the host as it comes.
bool gradients_can_leave(const std::string& method) {
  return method == "zero2" || method == "zero3";
}

// The first rank reads, tokenises and caches the data; the others then find what it made, and do not log it again.
std::unique_ptr<Feed> make_feed_in_turn(RunConfig& config, const Log& log, const Standing& standing) {
  if (standing.rank() != 0) standing.ranks->barrier();
  auto feed = make_feed(config, standing.rank() == 0 ? log : Log(LogLevel::off, standing.rank()));
  if (standing.rank() == 0 && standing.ranks) standing.ranks->barrier();
  return feed;
}

// Copies of one part of the model that one host holds: what ZeRO++ calls a node.
int copies_per_node(const RunConfig& config, const parallel::MeshShape& mesh, const Standing& standing) {
  const int per_node =
      config.comm.nodes > 0 ? standing.size() / static_cast<int>(config.comm.nodes) : standing.local_size;
  return std::clamp(per_node / mesh.tp, 1, mesh.replicas());
}

bool has_dedicated_servers(const RunConfig& config) {
  return config.sync.method == "ps" && config.sync.ps.server_ranks == "dedicated";
}

// Those that compute, where not all do; null for the others, and where one is alone.
std::unique_ptr<comm::Communicator> workers_of(const RunConfig& config, const Standing& standing) {
  if (!has_dedicated_servers(config)) return nullptr;
  const int workers = layout_of(config, standing.size()).mesh.size();
  auto all = standing.ranks->split(standing.rank() < workers ? 0 : -1, standing.rank());
  return workers > 1 ? std::move(all) : nullptr;
}

parallel::MeshShape mesh_of(const RunConfig& config, const Standing& standing) {
  const parallel::MeshShape shape = layout_of(config, standing.size()).mesh;
  return standing.rank() < shape.size() ? shape : parallel::MeshShape();
}

// Ranks would write one file: the first one does.
GpuHabits habits_of(const RunConfig& config, const Standing& standing) {
  return {config.run.deterministic, config.train.precision == "tf32", config.train.precision == "fp8",
          standing.rank() == 0 ? run_folder_of(config) + "/gemm_choices.txt" : ""};
}

// Null where the ranks' communicator takes what this rank computes with. Between GPUs it is NCCL where each rank has
// one of its own, else the host's communicator, staged.
std::unique_ptr<comm::Communicator> between_gpus(const RunConfig& config, const Standing& standing,
                                                 const device::Stream& stream, device::MemoryAccount& account,
                                                 std::vector<std::string>& notes) {
  const bool wished = config.comm.transport == "nccl";
  if (wished && !device::on_cuda(stream))
    throw UsageError("comm.transport = nccl carries between GPUs alone; with run.device = cpu leave it auto");
  if (!standing.ranks || !device::on_cuda(stream)) return nullptr;
  std::string why = "comm.transport = " + config.comm.transport;
  if (wished || config.comm.transport == "auto") why = comm::why_not_nccl(*standing.ranks, stream.device);
  if (wished && !why.empty()) throw UsageError(fmt::format("comm.transport = nccl: {}; auto would do", why));
  if (why.empty()) {
    notes.push_back(fmt::format("between GPUs: NCCL {}", comm::nccl_version()));
    return comm::make_nccl(*standing.ranks, stream, account);
  }
  notes.push_back(fmt::format("between GPUs: through the host's memory ({})", why));
  return comm::make_staged(*standing.ranks, stream, account);
}

// What is coded and sent from the host's memory alone, by the key that asks for it; empty: nothing is.
std::string_view agrees_on_host(const device::Stream& stream, const RunConfig& config) {
  if (!device::on_cuda(stream)) return {};
  if (config.sync.compress != "none") return "sync.compress";
  if (config.sync.quantise != "none") return "sync.quantise";
  if (config.sync.method == "ps") return "sync.method = ps";
  if (config.sync.method == "local" && config.sync.average_over == "servers") return "sync.average_over = servers";
  if (config.sync.method == "allreduce" && config.sync.buckets == "cycle") return "sync.buckets = cycle";
  return {};
}

void check_runs_on(const device::Stream& stream, const RunConfig& config) {
  if (!device::on_cuda(stream)) return;
  const std::string_view on_host = agrees_on_host(stream, config);
  if (!on_host.empty() && config.sync.offload != "none")
    throw UsageError(fmt::format(
        "run.device = cuda: with {} values and states are the host's already; leave sync.offload none", on_host));
}

Standing with_ranks(Standing standing, comm::Communicator* ranks) {
  if (ranks) standing.ranks = ranks;
  return standing;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Engine::Engine(RunConfig& config, const Log& log, const Standing& standing, obs::TraceRow* trace)
    : config_(config),
      threads_(threads_of(config, standing)),
      place_(config.run.device, account_, standing.rank(), habits_of(config, standing)),
      staged_(between_gpus(config, standing, place_.stream(&threads_), account_, notes_)),
      standing_(with_ranks(standing, staged_.get())),
      workers_(workers_of(config, standing_)),
      mesh_(mesh_of(config, standing_), has_dedicated_servers(config) ? workers_.get() : standing_.ranks),
      pool_(account_, device::MemoryTier::device, place_.memory()),
      host_pool_(account_, device::MemoryTier::host, place_.host_memory()),
      context_{place_.stream(&threads_), &pool_},
      feed_(make_feed_in_turn(config, log, standing)),
      loss_scale_(config.train.precision == "fp16" ? optim::LossScale::dynamic() : optim::LossScale::fixed()),
      trace_(trace) {
  check_runs_on(context_.stream, config);
  if (config.train.micro_batch == 0) config.train.micro_batch = share();
  const model::ModelConfig shape = model_config(config.model);
  shape.check();
  split(config, shape);
  account_.set_budget(device::MemoryTier::device, static_cast<uint64_t>(config.run.device_memory_mb * (1 << 20)));
  check_budget(config, model_->parameters(), mesh_.size(MeshAxis::replicas));
  try {
    set_up(config);
  } catch (const DeviceError& error) {
    throw_if_over_budget(config, model_->parameters(), account_, error, 0);
    throw;
  }
  if (offload_)
    for (std::string& line : offload_->notes()) notes_.push_back(std::move(line));
  words_.resize(static_cast<size_t>(standing.size()) * kNumWords);
  data::LoaderOptions loading;
  loading.B = share();
  loading.world = mesh_.shape().dp;  // holders of one copy read the same rows
  loading.rank = mesh_.coordinates().dp;
  loader_ = std::make_unique<data::Loader>(*feed_->train, loading);
  if (config.log.samples)
    sample_log_ = std::make_unique<SampleLog>(run_folder_of(config), standing.rank(), mesh_.coordinates().dp);
}

Engine::~Engine() = default;

// What this rank has of the model and of each sequence.
void Engine::split(const RunConfig& config, const model::ModelConfig& shape) {
  const parallel::MeshShape& mesh = mesh_.shape();
  parallel::RegionOptions options = region_options(config);
  options.trace = trace_;
  if (config.train.activations == "textbook")
    regions_ = parallel::make_textbook_regions(mesh_, options);
  else if (mesh.tp > 1 || mesh.cp > 1 || mesh.ep > 1)
    regions_ = parallel::make_regions(mesh_, options);
  const bool causal = shape.arch != "bert" && shape.arch != "t5";
  tokens_ = std::make_unique<HeldTokens>(
      parallel::tokens_held(mesh, mesh_.coordinates(), options, shape.seq_len, causal), mesh_.coordinates().cp == 0);
  pieces_ = stage_pieces(pieces_of(shape, mesh.pp * static_cast<int>(config.parallel.interleave)),
                         mesh_.coordinates().pp, mesh.pp);
  const auto make = [&] {
    return model::make_model(shape, part_of(pieces_, {{mesh_.coordinates().tp, mesh.tp},
                                                      {mesh_.index(MeshAxis::expert), mesh_.size(MeshAxis::expert)}}));
  };
  model_ = make();
  if (const std::string_view what = agrees_on_host(context_.stream, config); !what.empty()) {
    host_model_ = make();
    notes_.push_back(
        fmt::format("{}: values, codes and the optimizer are the host's, the GPU computes with a copy", what));
  }
}

// What takes the device's memory for good.
void Engine::set_up(RunConfig& config) {
  if (config.sync.offload != "none")
    offload_ = std::make_unique<sync::Offload>(account_, file_options(config), place_.host_memory());
  model::Model& updated = host_model_ ? *host_model_ : *model_;
  hold(config, updated.parameters(), model_->parameters(), MeshAxis::replicas);
  if (model_->experts()) hold(config, *updated.experts(), *model_->experts(), MeshAxis::expert_data);
  norm_ = std::make_unique<ModelNorm>(mesh_, *model_);
  MicroBatchSetup passes;
  passes.config = &config_;
  passes.mesh = &mesh_;
  passes.model = model_.get();
  for (const Holding& holding : holdings_) {
    passes.strategies.push_back(holding.strategy.get());
    if (holding.partial) passes.partial.push_back(holding.partial.get());
  }
  passes.regions = regions_ ? regions_.get() : &nn::single_device_ops();
  passes.every_pass_leaves =
      gradients_can_leave(config.sync.method) && config.sync.accumulate != "local" && !host_model_;
  passes.tokens = tokens_->map();
  passes.pieces = pieces_;
  passes.context = context_;
  passes.trace = trace_;
  micro_batches_ = make_micro_batches(passes);
}

void Engine::hold(RunConfig& config, nn::ParameterList& parameters, nn::ParameterList& computed_with, MeshAxis copies) {
  Holding holding;
  holding.parameters = &parameters;
  holding.context = host_model_ ? host() : context_;
  sync::Setup setup;
  setup.ranks = has_dedicated_servers(config) ? standing_.ranks : mesh_.group(copies);
  setup.ranks_per_node = copies_per_node(config, mesh_.shape(), standing_);
  setup.gradients_to_sink = config.sync.offload != "none" && gradients_can_leave(config.sync.method);
  setup.parameters = &parameters;
  setup.context = holding.context;
  setup.storage = storage_type(config.train.precision);
  setup.options = sync_options(config);
  // A tied table stands on two stages, cut in buckets with other neighbours on each: sums in rank order, whatever the
  // cut, keep the two equal to the bit.
  if (mesh_.shape().pp > 1 && model_->config().tie_embeddings) setup.options.deterministic = true;
  setup.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(2 * config.comm.timeout_s));
  setup.trace = trace_;
  setup.offload = offload_.get();
  holding.strategy = sync::make_strategy(setup);
  if (&parameters != &computed_with) {
    holding.on_device = &computed_with;
    holding.strategy =
        sync::make_on_host(std::move(holding.strategy), parameters, computed_with, context_, setup.storage);
  }
  holding.strategy->fill([&](nn::ParameterList::Unit& unit) {
    parameters.initialise(unit, static_cast<uint64_t>(config.run.seed), holding.context.stream);
  });
  if (config.parallel.sequence)
    holding.partial = parallel::make_partial_gradients(mesh_, computed_with, context_, setup.timeout);
  holding.optimizer = make_optimizer(holding);
  if (sync::DivergentReplicas* divergent = holding.strategy->divergent_replicas())
    divergent->attach(*holding.optimizer);
  holdings_.push_back(std::move(holding));
}

std::unique_ptr<optim::Optimizer> Engine::make_optimizer(Holding& of) {
  optim::OptimizerOptions options = optimizer_options(config_.train);
  options.split_master = config_.sync.split_master;
  if (auto own = of.strategy->make_optimizer(options)) return own;
  if (config_.sync.offload == "none")
    return optim::make_optimizer(options, *of.parameters, of.context, of.strategy->owned());
  sync::TierOptions tier;
  tier.placement = config_.sync.offload;
  tier.tile = config_.sync.offload_tile;
  tier.host_bytes = static_cast<uint64_t>(config_.sync.offload_host_mb * (1 << 20));
  tier.delay_after = config_.sync.delay_update;
  tier.early = config_.sync.update_early;
  tier.split_master = config_.sync.split_master;
  // Beside a GPU the host's threads have nothing else to do; on a processor they compute.
  if (device::on_cuda(context_.stream)) tier.host_threads = context_.stream.num_threads();
  tier.file = offload_->files();
  of.strategy->set_sink(offload_.get());
  return offload_->make_optimizer(options, *of.parameters, context_.stream, of.strategy->owned(), tier);
}

int64_t Engine::tokens_per_step() const {
  const data::BatchShape shape = feed_->train->shape();
  return config_.train.global_batch * (shape.T + shape.T_decoder);
}

device::LinkRates Engine::link_alone() {
  const size_t bytes = (device::on_cuda(context_.stream) ? size_t{256} : size_t{16}) << 20;
  return device::measure_link(context_.stream, place_.memory(), place_.host_memory(), bytes);
}

void Engine::resume_at(int64_t step) {
  step_ = step;
  loader_->seek(next_sample());
  for (Holding& holding : holdings_) {
    if (sync::DivergentReplicas* divergent = holding.strategy->divergent_replicas()) divergent->begin_at(step);
    if (sync::AsyncWorkers* workers = holding.strategy->async_workers()) workers->begin_at(step);
  }
}

int64_t Engine::num_parameters() const {
  return model::parameter_count(model_->config());
}

double Engine::summed_over(MeshAxis axis, double value) const {
  if (comm::Communicator* ranks = mesh_.group(axis))
    ranks->all_reduce(&value, &value, 1, DType::f64, comm::ReduceOp::sum);
  return value;
}

// Every target's loss is told once: by the last stage, and of those that share its head by the first.
bool Engine::speaks_for_loss() const {
  return mesh_.coordinates().pp + 1 == mesh_.shape().pp && mesh_.coordinates().tp == 0;
}

Rows Engine::rows_of(const data::Batch& batch, int64_t first, int64_t num_passes, bool training) {
  const double copies = mesh_.shape().dp, together = copies_together();
  const double router_scale =
      training ? loss_scale_.scale() / static_cast<double>(tokens_per_step()) * (copies / together) : 0;
  return {first, num_passes, batch.shape.T, step_, router_scale};
}

double Engine::run(const data::Batch& batch, int64_t first, int64_t num_passes, bool training, double scale) {
  const double sum =
      micro_batches_->run(tokens_->of(batch), rows_of(batch, first, num_passes, training), training, scale);
  return speaks_for_loss() ? sum : 0;
}

// What every rank tells the others at the end of a step, as doubles.
void Engine::exchange(StepResult& result, double loss, double busy_ms, const StepNotice& notice) {
  const double mine[kNumWords] = {loss, busy_ms, packed(notice)};
  if (standing_.ranks) {
    standing_.ranks->all_gather(mine, words_.data(), kNumWords, DType::f64);
  } else {
    std::copy(std::begin(mine), std::end(mine), words_.begin());
  }
  double longest = 0, busy = 0;
  for (size_t rank = 0; rank < words_.size() / kNumWords; ++rank) {
    const double* words = words_.data() + rank * kNumWords;
    result.loss += words[0];
    busy += words[1];
    if (words[1] > longest) {
      longest = words[1];
      result.slowest_rank = static_cast<int>(rank);
    }
    const StepNotice notice_of_rank = unpacked(words[2]);
    if (rank == 0) result.agreed.save = notice_of_rank.save;
    result.agreed.stop = result.agreed.stop || notice_of_rank.stop;
    result.agreed.snapshot_cost_s = std::max(result.agreed.snapshot_cost_s, notice_of_rank.snapshot_cost_s);
    result.agreed.checkpoint_cost_s = std::max(result.agreed.checkpoint_cost_s, notice_of_rank.checkpoint_cost_s);
  }
  const int others = standing_.size() - 1;
  if (others > 0) result.waited_ms = (longest * standing_.size() - busy) / others;
}

// Every step needs what the first two need: one that notes the order of uses, one that fetches ahead by it.
StepResult Engine::step(const StepNotice& notice) {
  try {
    StepResult result = train_step(notice);
    ++steps_done_;
    return result;
  } catch (const DeviceError& error) {
    if (steps_done_ < 2) throw_if_over_budget(config_, model_->parameters(), account_, error, measured_need());
    throw;
  }
}

// The device's memory that two steps take where nothing limits them; 0 where it is not to be known: other ranks would
// have to take part, or this is no run with a limit.
uint64_t Engine::measured_need() const {
  if (standing_.size() > 1 || config_.run.device_memory_mb == 0) return 0;
  RunConfig config = config_;
  config.run.device_memory_mb = 0;
  config.log.samples = false;
  try {
    Engine unlimited(config, Log());
    unlimited.resume_at(step_);
    for (int i = 0; i < 2; ++i) unlimited.step();
    return unlimited.account_.use(device::MemoryTier::device).peak;
  } catch (const Error&) {
    return 0;  // what is wrong with the run will be said without this number
  }
}

StepResult Engine::train_step(const StepNotice& notice) {
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
  const double counted = std::max(1.0, lockstep ? summed_over(MeshAxis::data, own) : own);
  const double scope_tokens = this->scope_tokens(own, counted);
  const int64_t begun = now_ns();
  for (Holding& holding : holdings_) holding.strategy->begin_step();
  micro_batches_->reset_times();
  if (regions_) regions_->reset_times();
  StepResult result;
  result.notes = std::exchange(notes_, {});
  result.lr = rate_at(config_.train, step_);
  result.tokens = tokens_per_step();
  const double scale = loss_scale_.scale();
  if (device::on_cuda(context_.stream)) kernel::cuda::advance_scales(context_.stream);
  if (config_.sync.update_early) offload_->open_step(result.lr, 1 / scale);
  const double loss = batch ? run(*batch, mesh_.coordinates().dp * share(), share() / config_.train.micro_batch, true,
                                  scale / scope_tokens)
                            : 0;
  const double busy_ms = static_cast<double>(now_ns() - begun) * 1e-6 - exposed_ms();

  for (Holding& holding : holdings_) holding.strategy->finish();
  if (lockstep) {
    exchange(result, loss, busy_ms, notice);
  } else {
    result.loss = loss;
    if (notice.stop) workers->request_stop();
  }
  result.loss /= counted;
  obs::Span span(trace_, "optimizer", "compute");
  const double own_norm = std::sqrt(sum_of_squares()) / scale;
  // Copies that go their own ways clip by their own norm; told is the mean of all, and one that cannot step keeps all.
  result.grad_norm = reduction_scope().all ? own_norm : mean_of_copies(own_norm);
  result.skipped = !std::isfinite(result.grad_norm);
  if (result.skipped && config_.sync.update_early)
    throw Error(ExitCode::internal,
                fmt::format("{}: but sync.update_early has used them; resume a checkpoint, with a lower train.lr",
                            units_not_finite()));
  const bool finite = std::isfinite(result.loss);
  std::string why = result.skipped && finite ? units_not_finite() : "";
  loss_scale_.update(result.skipped);
  const double factor = optim::clip_factor(own_norm, config_.train.clip) / scale;
  for (Holding& holding : holdings_) {
    if (!result.skipped) holding.optimizer->step(result.lr, factor);
    holding.strategy->after_step();
    for (std::string& note : holding.strategy->take_notes()) result.notes.push_back(std::move(note));
  }
  // Of losses in a row that are not finite the first is looked into, by all ranks: it is the same on all.
  if (!finite) why = loss_not_finite(batch, lockstep && loss_was_finite_);
  loss_was_finite_ = finite;
  if (result.skipped) result.notes.push_back(std::move(why));
  result.exposed_ms = exposed_ms();
  ++step_;
  if (!lockstep) result.agreed.stop = workers->stops_before(step_);
  return result;
}

sync::ReductionScope Engine::reduction_scope() {
  sync::DivergentReplicas* divergent = strategy().divergent_replicas();
  return divergent ? divergent->reduction_scope() : sync::ReductionScope();
}

// Added in the order of the copies, whatever way they travel.
double Engine::mean_of_copies(double own) {
  comm::Communicator* ranks = mesh_.group(MeshAxis::data);
  if (!ranks) return own;
  ranks->all_gather(&own, words_.data(), 1, DType::f64);
  double sum = 0;
  for (int copy = 0; copy < ranks->size(); ++copy) sum += words_[static_cast<size_t>(copy)];
  return sum / ranks->size();
}

double Engine::copies_together() {
  const sync::ReductionScope who = reduction_scope();
  return who.all ? mesh_.shape().dp : (who.some ? who.some->size() : 1);
}

// The tokens whose gradients add up: of all copies, of a node, or this copy's own.
double Engine::scope_tokens(double own, double all) {
  sync::DivergentReplicas* divergent = strategy().divergent_replicas();
  if (!divergent) return all;
  divergent->set_local_tokens(own);
  const sync::ReductionScope who = divergent->reduction_scope();
  if (who.all) return all;
  if (who.some) who.some->all_reduce(&own, &own, 1, DType::f64, comm::ReduceOp::sum);
  return std::max(1.0, own);
}

// Waited for others in this step, whoever they were.
double Engine::exposed_ms() const {
  double sum = micro_batches_->exposed_ms() + (regions_ ? regions_->exposed_ms() : 0);
  for (const Holding& holding : holdings_) sum += holding.strategy->times().exposed_ms;
  return sum;
}

double Engine::sum_of_squares() {
  const std::vector<double>* experts = nullptr;
  if (holdings_.size() > 1) experts = &holdings_[1].strategy->sums_of_squares();
  return norm_->sum(holdings_[0].strategy->sums_of_squares(), experts);
}

// Of the last sums_of_squares. Backward spreads what is not finite to the units before: the last of them is where it
// met it first.
std::string Engine::units_not_finite() {
  std::vector<std::string> names;
  size_t others = 0;
  for (Holding& holding : holdings_) {
    const std::vector<double>& sums = holding.strategy->sums_of_squares();
    const auto bad = [](double sum) { return !std::isfinite(sum); };
    const auto last = std::find_if(sums.rbegin(), sums.rend(), bad);
    if (last == sums.rend()) continue;
    names.push_back(holding.parameters->units()[static_cast<size_t>(sums.rend() - last) - 1].name);
    others += static_cast<size_t>(std::count_if(last + 1, sums.rend(), bad));
  }
  if (names.empty()) return fmt::format("step {}: the norm of the gradients is not finite; it is skipped", step_ + 1);
  return fmt::format("step {}: gradients are not finite, in backward's order first in {}{}; it is skipped", step_ + 1,
                     fmt::join(names, " and "), others > 0 ? fmt::format(", then in {} more", others) : "");
}

std::string Engine::loss_not_finite(const data::Batch* batch, bool look) {
  FoundNotFinite found = kNotLooked;
  if (look && batch)
    found = micro_batches_->first_not_finite(tokens_->of(*batch), rows_of(*batch, mesh_.coordinates().dp * share(),
                                                                          share() / config_.train.micro_batch, true));
  std::vector<FoundNotFinite> all(static_cast<size_t>(standing_.size()), found);
  if (look && standing_.ranks) standing_.ranks->all_gather(&found, all.data(), 1, DType::i64);
  const auto first = std::min_element(all.begin(), all.end());
  return fmt::format("step {}: the loss is not finite{}; it is skipped", step_ + 1,
                     describe(*first, *model_, static_cast<int>(first - all.begin())));
}

double Engine::evaluate(int64_t batches) {
  if (!feed_->val) return std::numeric_limits<double>::quiet_NaN();
  obs::Span span(trace_, "evaluate", "compute");
  const sync::ScopedAverageWeights lent(strategy().divergent_replicas());
  sync::AsyncWorkers* const workers = strategy().async_workers();
  if (workers) workers->synchronise();
  const auto available = static_cast<int64_t>(feed_->val->samples_per_epoch());
  double sum = 0, counted = 0;
  const bool computes = !workers || !workers->is_server_only();
  for (int64_t first = 0; computes && first < std::min(batches * config_.train.global_batch, available);
       first += config_.train.global_batch) {
    const int64_t rows = std::min(config_.train.global_batch, available - first);
    const int dp = mesh_.shape().dp;
    const comm::Chunk mine = comm::chunk_of(static_cast<size_t>(rows), dp, mesh_.coordinates().dp);
    const auto at = std::min(static_cast<int64_t>(mine.offset), rows - 1);
    data::fill_batch(*feed_->val, static_cast<uint64_t>(first + at),
                     std::max<int64_t>(1, static_cast<int64_t>(mine.count)), eval_batch_);
    const auto most = static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(rows), dp, 0).count);
    const int64_t num_passes = (most + config_.train.micro_batch - 1) / config_.train.micro_batch;
    const double loss = run(eval_batch_, at, num_passes, false, 0);
    if (mine.count == 0) continue;
    sum += loss;
    counted += static_cast<double>(eval_batch_.counted);
  }
  if (standing_.ranks) standing_.ranks->all_reduce(&sum, &sum, 1, DType::f64, comm::ReduceOp::sum);
  counted = summed_over(MeshAxis::data, counted);
  return counted > 0 ? sum / counted : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace esp::train
