// What the run file's words and numbers mean, and whether they fit together.
#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/comm/preferences.h"
#include "esp/optim/optimizer.h"
#include "esp/optim/schedule.h"
#include "esp/sync/compress/compression.h"
#include "esp/sync/strategy.h"
#include "esp/train/engine_options.h"
#include "esp/train/run_config.h"
#include "esp/train/split.h"

namespace esp::train {
namespace {

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<DType> kPrecisions[] = {{"fp64", DType::f64}, {"fp32", DType::f32}, {"bf16", DType::bf16},
                                        {"fp16", DType::f16}, {"tf32", DType::f32}, {"fp8", DType::bf16}};
constexpr Named<nn::Recompute> kRecomputes[] = {
    {"none", nn::Recompute::none}, {"selective", nn::Recompute::selective}, {"full", nn::Recompute::full}};
constexpr Named<bool> kActivations[] = {{"lean", false}, {"textbook", true}};
constexpr Named<kernel::NormKind> kNorms[] = {{"layer", kernel::NormKind::layer},
                                              {"rms", kernel::NormKind::rms},
                                              {"layernorm", kernel::NormKind::layer},
                                              {"rmsnorm", kernel::NormKind::rms}};
constexpr Named<model::Positions> kPositions[] = {{"learned", model::Positions::learned},
                                                  {"rotary", model::Positions::rotary},
                                                  {"none", model::Positions::none},
                                                  {"rope", model::Positions::rotary}};
constexpr Named<kernel::RopeScaling> kRopeScalings[] = {{"none", kernel::RopeScaling::none},
                                                        {"linear", kernel::RopeScaling::linear},
                                                        {"yarn", kernel::RopeScaling::yarn},
                                                        {"llama3", kernel::RopeScaling::llama3}};

// Between processes; nccl is the device's own, the others are rows of net's table.
constexpr Named<int> kTransports[] = {{"auto", 0}, {"shm", 1}, {"tcp", 2}, {"mpi", 3}, {"nccl", 4}};

constexpr int64_t kMostTokensOfAStep = int64_t{1} << 31;

template <typename Table, typename T>
std::string name_in(const Table& table, T value) {
  for (const auto& row : table)
    if (row.value == value) return std::string(row.name);
  return {};
}

void want(bool holds, std::string_view key, const auto& given, std::string_view wanted) {
  if (!holds) throw UsageError(fmt::format("{} = {}: {}", key, given, wanted));
}

}  // namespace

DType storage_type(std::string_view precision) {
  return find_row("precision", kPrecisions, precision).value;
}

std::string precision_name(DType storage) {
  return name_in(kPrecisions, storage);
}

nn::Recompute parse_recompute(std::string_view name) {
  return find_row("recompute", kRecomputes, name).value;
}

model::ModelConfig model_config(const ModelSection& s) {
  model::ModelConfig c;
  c.arch = s.arch;
  c.layers = s.layers;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.dim = s.dim;
  c.ffn = s.ffn;
  c.vocab = s.vocab;
  c.seq_len = s.seq_len;
  c.dropout = s.dropout;
  c.activation = kernel::parse_activation(s.activation);
  c.gated = s.gated;
  c.norm = find_row("norm", kNorms, s.norm).value;
  c.post_norm = s.post_norm;
  c.norm_eps = s.norm_eps;
  c.positions = find_row("positions", kPositions, s.positions).value;
  c.rope = s.rope;
  c.rope.scaling = find_row("rope_scaling", kRopeScalings, s.rope_scaling).value;
  c.bias = s.bias;
  c.tie_embeddings = s.tie_embeddings;
  c.experts = s.experts;
  c.experts_per_token = s.experts_per_token;
  c.expert_every = s.expert_every;
  c.expert_capacity = s.expert_capacity;
  c.expert_aux = s.expert_aux;
  c.expert_z = s.expert_z;
  c.shared_expert = s.shared_expert;
  c.type_vocab = s.type_vocab;
  c.num_classes = s.classes;
  c.pooler = s.pooler;
  c.embedding_norm = s.embedding_norm;
  c.zero_positions = s.zero_positions;
  c.headless = s.headless;
  c.init_std = s.init_std;
  return c;
}

ModelSection model_section(const model::ModelConfig& c) {
  ModelSection s;
  s.arch = c.arch;
  s.layers = c.layers;
  s.heads = c.heads;
  s.kv_heads = c.kv_heads;
  s.dim = c.dim;
  s.ffn = c.ffn;
  s.vocab = c.vocab;
  s.seq_len = c.seq_len;
  s.dropout = c.dropout;
  s.activation = std::string(kernel::name_of(c.activation));
  s.gated = c.gated;
  s.norm = name_in(kNorms, c.norm);
  s.post_norm = c.post_norm;
  s.norm_eps = c.norm_eps;
  s.positions = name_in(kPositions, c.positions);
  s.rope = c.rope;
  s.rope_scaling = name_in(kRopeScalings, c.rope.scaling);
  s.bias = c.bias;
  s.tie_embeddings = c.tie_embeddings;
  s.experts = c.experts;
  s.experts_per_token = c.experts_per_token;
  s.expert_every = c.expert_every;
  s.expert_capacity = c.expert_capacity;
  s.expert_aux = c.expert_aux;
  s.expert_z = c.expert_z;
  s.shared_expert = c.shared_expert;
  s.type_vocab = c.type_vocab;
  s.classes = c.num_classes;
  s.pooler = c.pooler;
  s.embedding_norm = c.embedding_norm;
  s.zero_positions = c.zero_positions;
  s.headless = c.headless;
  s.init_std = c.init_std;
  return s;
}

void RunConfig::check() const {
  want(!run.name.empty(), "run.name", "\"\"", "a name is wanted");
  want(run.device == "cpu" || run.device == "cuda", "run.device", run.device, "cpu or cuda is wanted");
  // Threads wait for each other many times a step: far more than cores would hardly move.
  const int64_t most_threads = std::max<int64_t>(64, 4 * std::thread::hardware_concurrency());
  want(run.threads >= 0 && run.threads <= most_threads, "run.threads", run.threads,
       fmt::format("0 (the cores there are) to {}", most_threads));
  storage_type(train.precision);
  want((train.precision != "tf32" && train.precision != "fp8") || run.device != "cpu", "train.precision",
       train.precision, "it is how a GPU multiplies; run.device = \"cuda\" is wanted with it");
  parse_recompute(train.recompute);
  want(train.recompute_layers >= -1 && train.recompute_layers <= model.layers, "train.recompute_layers",
       train.recompute_layers, fmt::format("-1 (all) or a number of blocks, of which there are {}", model.layers));
  find_row("activations", kActivations, train.activations);
  optim::ScheduleOptions schedule;
  schedule.name = train.schedule;
  optim::learning_rate(schedule, 0);
  bool known = false;
  for (std::string_view name : optim::optimizer_names()) known = known || name == train.optimizer;
  if (!known) unknown_name("optimizer", train.optimizer, optim::optimizer_names());
  want(train.steps >= 0, "train.steps", train.steps, "0 or more is wanted");
  model_config(model).check_sizes();
  want(train.global_batch >= 1, "train.global_batch", train.global_batch, "at least one sequence is wanted");
  const int64_t most_rows = kMostTokensOfAStep / std::max<int64_t>(1, model.seq_len);
  want(train.global_batch <= most_rows, "train.global_batch", train.global_batch,
       fmt::format("at most {} sequences of model.seq_len = {}: 2^31 tokens a step", most_rows, model.seq_len));
  want(train.micro_batch >= 0, "train.micro_batch", train.micro_batch, "0 (a rank's whole share) or more is wanted");
  if (train.micro_batch > 0)
    want(train.global_batch % train.micro_batch == 0, "train.micro_batch", train.micro_batch,
         fmt::format("it must divide train.global_batch = {}", train.global_batch));
  want(train.lr > 0, "train.lr", train.lr, "more than 0 is wanted");
  want(run.check_replicas_every >= 0, "run.check_replicas_every", run.check_replicas_every, "0 (never) or more");
  want(run.check_products_every >= 0, "run.check_products_every", run.check_products_every, "0 (never) or more");
  auto wants_part = [](double value, std::string_view key) {
    want(value >= 0 && value < 1, key, value, "at least 0 and below 1");
  };
  wants_part(train.beta1, "train.beta1");
  wants_part(train.beta2, "train.beta2");
  wants_part(train.momentum, "train.momentum");
  want(train.eps > 0, "train.eps", train.eps, "more than 0 is wanted");
  want(train.weight_decay >= 0, "train.weight_decay", train.weight_decay, "0 (none) or more is wanted");
  want(train.lr_floor >= 0 && train.lr_floor <= 1, "train.lr_floor", train.lr_floor, "a part of train.lr, 0 to 1");
  want(train.decay_steps >= 0, "train.decay_steps", train.decay_steps, "0 (a tenth of the run) or more is wanted");
  want(train.max_minutes >= 0, "train.max_minutes", train.max_minutes, "0 (no limit) or more is wanted");
  want(train.clip >= 0, "train.clip", train.clip, "0 (none) or more is wanted");
  want(train.warmup >= 0 && train.warmup <= train.steps, "train.warmup", train.warmup,
       fmt::format("0 to train.steps = {}", train.steps));
  want(train.eval_every >= 0, "train.eval_every", train.eval_every, "0 (at the end only) or more is wanted");
  want(train.eval_batches >= 1 && train.eval_batches <= 1'000'000'000, "train.eval_batches", train.eval_batches,
       "1 to 1000000000 is wanted");
  wants_part(model.dropout, "model.dropout");
  want(model.seq_len >= 1, "model.seq_len", model.seq_len, "at least one token is wanted");
  wants_part(data.val_fraction, "data.val_fraction");
  want(data.mask_rate > 0 && data.mask_rate < 1, "data.mask_rate", data.mask_rate, "more than 0 and below 1");
  find_row("transport (comm.transport)", kTransports, comm.transport);
  comm::algorithm_id_of(comm::Op::all_reduce, comm.all_reduce);
  sync::check_words(sync_options(*this));
  want(comm.timeout_s > 0, "comm.timeout_s", comm.timeout_s, "more than 0 seconds are wanted");
  want(parallel.layout.empty() || parallel.layout == "auto", "parallel.layout", parallel.layout,
       "auto is wanted, or nothing and the axes: dp, tp, pp, cp and ep");
  want(log.every >= 1, "log.every", log.every, "at least 1 is wanted");
  want(checkpoint.every >= 0, "checkpoint.every", checkpoint.every, "0 (at the end and on a signal) or more is wanted");
  want(checkpoint.keep >= 0, "checkpoint.keep", checkpoint.keep, "0 (all) or more is wanted");
  want(!checkpoint.resume.empty(), "checkpoint.resume", "\"\"", "auto, none or a checkpoint's path is wanted");
  want(checkpoint.snapshot_every >= 0, "checkpoint.snapshot_every", checkpoint.snapshot_every, "0 or more is wanted");
}

namespace {

bool goes_apart(const SyncSection& sync) {
  return sync.method == "gossip" || sync.method == "local" || sync.method == "diloco";
}

// Which layouts are worth offering: the checks below refuse the others.
bool sync_takes(const SyncSection& sync, const parallel::MeshShape& mesh) {
  if (sync.method == "ps" || sync.compress != "none" || sync.update_early) return mesh.size() == mesh.dp;
  return !goes_apart(sync) || (mesh.cp == 1 && mesh.ep == 1);
}

}  // namespace

void RunConfig::check_world(int world) const {
  const parallel::Layout layout = layout_of(*this, world);
  parallel::check_layout(layout_sizes(*this), layout,
                         [this](const parallel::Layout& one) { return sync_takes(sync, one.mesh); });
  const int dp = layout.mesh.copies();
  want(layout.mesh.pp == 1 || sync.accumulate != "reduced", "sync.accumulate", sync.accumulate,
       fmt::format("the {} stages of a pipeline (pp) add up micro-batches before they reduce them; local is wanted",
                   layout.mesh.pp));
  want(layout.mesh.ep == 1 || (sync.offload == "none" && sync.quantise == "none"), "parallel.ep", layout.mesh.ep,
       "experts of which ranks hold their share stay on the device: no sync.offload and no sync.quantise with it");
  want(train.activations == "lean" || layout.mesh.cp == 1, "train.activations", train.activations,
       "stored attention has a sequence's tokens on one rank, parallel.cp divides them; lean is wanted");
  find_row("sync.method", sync::strategies(), sync.method);
  want(sync.bucket_mb > 0 && sync.first_bucket_mb > 0, "sync.bucket_mb", sync.bucket_mb, "more than 0 is wanted");
  static constexpr Named<int> kBuckets[] = {{"fixed", 0}, {"observed", 1}, {"cycle", 2}};
  find_row("sync.buckets", kBuckets, sync.buckets);
  want(sync.buckets == "fixed" || sync.method == "allreduce", "sync.buckets", sync.buckets,
       "it is of sync.method = \"allreduce\"; shards are cut beforehand");
  want(sync.fusion_mb > 0 && sync.cycle_ms > 0, "sync.fusion_mb", sync.fusion_mb, "more than 0, as sync.cycle_ms");
  want(sync.prefetch >= (sync.offload_params == "none" ? 0 : -1), "sync.prefetch", sync.prefetch,
       "0 or more is wanted; -1 (as measured) with sync.offload_params = \"host\" or \"file\"");
  want(sync.group >= 0 && (sync.group == 0 || dp % sync.group == 0), "sync.group", sync.group,
       fmt::format("0 (all) or what divides the {} ranks that hold copies", dp));
  want(sync.group == 0 || sync.method.starts_with("zero"), "sync.group", sync.group,
       "it is of zero1, zero2 and zero3; others keep whole copies everywhere");
  static constexpr Named<int> kOffloads[] = {{"none", 0}, {"host", 1}, {"file", 2}};
  static constexpr Named<int> kIo[] = {{"auto", 0}, {"uring", 1}, {"threads", 2}};
  find_row("sync.offload", kOffloads, sync.offload);
  find_row("sync.offload_params", kOffloads, sync.offload_params);
  find_row("sync.offload_io", kIo, sync.offload_io);
  want(sync.offload_params == "none" || (sync.method == "zero3" && sync.offload != "none"), "sync.offload_params",
       sync.offload_params,
       fmt::format("values leave the device with sync.method = \"zero3\" and sync.offload = \"host\" or \"file\"; "
                   "these are {} and {}",
                   sync.method, sync.offload));
  want(sync.offload_params == "none" || sync.quantise == "none", "sync.offload_params", sync.offload_params,
       "ZeRO++ (sync.quantise) gathers from the device; leave one of them out");
  want(!sync.direct_access || (sync.offload_params != "none" && dp == 1), "sync.direct_access", sync.direct_access,
       "one rank whose values lie beyond the device: sync.offload_params = \"host\" or \"file\"");
  want(sync.delay_update >= 0, "sync.delay_update", sync.delay_update, "0 (never) or a number of steps");
  want(sync.delay_update == 0 || sync.offload != "none", "sync.delay_update", sync.delay_update,
       "it delays the host's update; sync.offload = \"host\" or \"file\" is wanted with it");
  want(sync.offload_host_mb >= 0, "sync.offload_host_mb", sync.offload_host_mb, "0 (none) or more");
  want(sync.offload_host_mb == 0 || sync.offload == "file", "sync.offload_host_mb", sync.offload_host_mb,
       "it is a part of what would lie in a file; sync.offload = \"file\" is wanted with it");
  if (sync.split_master) {
    const auto halves = [&](bool fits, std::string_view why) {
      want(fits, "sync.split_master", sync.split_master, why);
    };
    halves(storage_type(train.precision) == DType::bf16,
           "values in 16 bits are wanted with it: train.precision = \"bf16\"");
    halves(train.optimizer != "sgd",
           "it is for Adam's states; train.optimizer = \"adamw\" or \"adam\" is wanted with it");
    halves(sync.offload == "none" || sync.update_early,
           "a master copy that is offloaded meets its values in an early update; sync.update_early = true is wanted "
           "with it");
    halves(sync.offload != "none" ||
               ((sync.method == "allreduce" || sync.method.starts_with("zero")) && sync.compress == "none"),
           "others than the optimizer use the master copy; sync.method = \"allreduce\" or zero1 to zero3, without "
           "sync.compress, "
           "is wanted with it");
  }
  if (sync.update_early) {
    const auto early = [](bool fits, std::string_view key, const auto& value, std::string_view why) {
      want(fits, key, value, fmt::format("{} with sync.update_early", why));
    };
    early(sync.method == "zero3" && sync.offload != "none", "sync.method", sync.method,
          "zero3 and sync.offload = \"host\" or \"file\" are wanted");
    early(sync.offload_params != "file", "sync.offload_params", sync.offload_params,
          "values are written while others are read: none or host is wanted");
    early(train.clip == 0, "train.clip", train.clip,
          "gradients are used before the norm of all of them is known: 0 is wanted");
    early(train.precision != "fp16", "train.precision", train.precision,
          "a step cannot be left out once it has begun: bf16 is wanted");
    early(sync.delay_update == 0, "sync.delay_update", sync.delay_update, "an update is early or late: 0 is wanted");
    early(sync.quantise == "none", "sync.quantise", sync.quantise, "none is wanted");
    early(layout.mesh.size() == layout.mesh.dp, "parallel.dp", layout.mesh.dp,
          "whole copies (no tp, pp, cp, ep) are wanted");
    early(sync.accumulate == "local" || train.micro_batch == 0 || train.micro_batch * dp == train.global_batch,
          "train.micro_batch", train.micro_batch,
          "one micro-batch, or sync.accumulate = \"local\" (gradients are added up on the device), is wanted");
  }
  want(sync.offload_tile >= 1024, "sync.offload_tile", sync.offload_tile, "at least 1024 elements");
  want(sync.quantise == "none" || sync.method == "zero3", "sync.quantise", sync.quantise,
       "ZeRO++ is of stage 3; sync.method = \"zero3\" is wanted with it");
  want(sync.quantise_block >= 1, "sync.quantise_block", sync.quantise_block, "at least 1 element");
  want(sync.quantise_grad_block >= 1, "sync.quantise_grad_block", sync.quantise_grad_block, "at least 1 element");
  want(run.device_memory_mb >= 0, "run.device_memory_mb", run.device_memory_mb, "0 (no limit) or more");
  want(comm.nodes >= 0 && (comm.nodes == 0 || world % comm.nodes == 0), "comm.nodes", comm.nodes,
       fmt::format("0 (as the hosts are) or what divides the {} ranks", world));
  const bool apart = goes_apart(sync);
  want(!apart || (layout.mesh.cp == 1 && layout.mesh.ep == 1), "sync.method", sync.method,
       "copies that go their own ways have their sequences and experts whole: no parallel.cp and no parallel.ep");
  want(!apart || sync.offload == "none", "sync.offload", sync.offload,
       "copies that go their own ways keep the optimizer's state with the values; none is wanted");
  want(apart || !sync.hierarchical, "sync.hierarchical", sync.hierarchical, "it is of gossip, local and diloco");
  want(sync.method == "gossip" || !sync.tracking, "sync.tracking", sync.tracking, "it is of sync.method = \"gossip\"");
  want(sync.consensus_every >= 0, "sync.consensus_every", sync.consensus_every, "0 (none) or more steps");
  want(sync.method != "ps" || layout.mesh.size() == layout.mesh.dp, "sync.method", sync.method,
       "workers hold the model whole: no parallel.tp, pp, cp or ep with it");
  want(sync.method != "ps" || sync.offload == "none", "sync.offload", sync.offload,
       "servers keep the optimizer's state; none is wanted");
  sync::check_compression(sync_options(*this));
  want(sync.compress == "none" || train.precision != "fp16", "train.precision", train.precision,
       "a loss scale that changes would leave errors of another scale with sync.compress; bf16 is wanted");
  want(sync.feedback != "onebit_adam" || (train.optimizer != "sgd" && sync.offload == "none"), "sync.feedback",
       sync.feedback, "it is Adam's: train.optimizer = adamw or adam, and sync.offload = none");
  want(sync.compress == "none" || layout.mesh.size() == layout.mesh.dp, "sync.compress", sync.compress,
       "copies of a divided model would compress shared parameters apart: no parallel.tp, pp, cp or ep with it");
  want(parallel.layout.empty(), "parallel.layout", parallel.layout,
       "espalier train asks the planner before ranks begin; elsewhere name the axes: dp, tp, pp, cp and ep");
}

}  // namespace esp::train
