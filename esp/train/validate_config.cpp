// Validation of the run file: meaning of string values, ranges, and combinations of keys.
#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/comm/preferences.h"
#include "esp/optim/lr_schedule.h"
#include "esp/optim/optimizer.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/strategy.h"
#include "esp/train/engine_options.h"
#include "esp/train/rank_partition.h"
#include "esp/train/run_config.h"

namespace esp::train {
namespace {

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr Named<DType> kPrecisions[] = {{"fp64", DType::f64}, {"fp32", DType::f32}, {"bf16", DType::bf16},
                                        {"fp16", DType::f16}, {"tf32", DType::f32}, {"fp8", DType::bf16}};
constexpr Named<nn::RecomputeMode> kRecomputes[] = {
    {"none", nn::RecomputeMode::none}, {"selective", nn::RecomputeMode::selective}, {"full", nn::RecomputeMode::full}};
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

// Names of the transports between processes. nccl is only for GPUs; the others are in the table of esp/net.
constexpr Named<int> kTransports[] = {{"auto", 0}, {"shm", 1}, {"tcp", 2}, {"mpi", 3}, {"nccl", 4}};

constexpr int64_t kMaxTokensPerStep = int64_t{1} << 31;

template <typename Table, typename T>
std::string name_in(const Table& table, T value) {
  for (const auto& row : table)
    if (row.value == value) return std::string(row.name);
  return {};
}

void require(bool holds, std::string_view key, const auto& given, std::string_view expected) {
  if (!holds) throw UsageError(fmt::format("{} = {}: {}", key, given, expected));
}

}  // namespace

DType storage_type(std::string_view precision) {
  return find_row("precision", kPrecisions, precision).value;
}

std::string precision_name(DType storage) {
  return name_in(kPrecisions, storage);
}

nn::RecomputeMode parse_recompute(std::string_view name) {
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
  require(run.device == "cpu" || run.device == "cuda", "run.device", run.device, "must be cpu or cuda");
  // The threads synchronise many times per step. With far more threads than cores, a step would take extremely long.
  const int64_t most_threads = std::max<int64_t>(64, 4 * std::thread::hardware_concurrency());
  require(run.threads >= 0 && run.threads <= most_threads, "run.threads", run.threads,
          fmt::format("must be 0 (all cores) to {}", most_threads));
  storage_type(train.precision);
  require((train.precision != "tf32" && train.precision != "fp8") || run.device != "cpu", "train.precision",
          train.precision, "needs a GPU: set run.device = \"cuda\"");
  parse_recompute(train.recompute);
  require(train.recompute_layers >= -1 && train.recompute_layers <= model.layers, "train.recompute_layers",
          train.recompute_layers, fmt::format("must be -1 (all blocks) to {}, the number of blocks", model.layers));
  find_row("activations", kActivations, train.activations);
  optim::LrScheduleOptions schedule;
  schedule.name = train.schedule;
  optim::learning_rate(schedule, 0);
  bool known = false;
  for (std::string_view name : optim::optimizer_names()) known = known || name == train.optimizer;
  if (!known) unknown_name("optimizer", train.optimizer, optim::optimizer_names());
  require(train.steps >= 0, "train.steps", train.steps, "must be >= 0");
  model_config(model).check_sizes();
  require(train.global_batch >= 1, "train.global_batch", train.global_batch, "must be >= 1");
  const int64_t most_rows = kMaxTokensPerStep / std::max<int64_t>(1, model.seq_len);
  require(train.global_batch <= most_rows, "train.global_batch", train.global_batch,
          fmt::format("must be <= {} with model.seq_len = {}: at most 2^31 tokens per step", most_rows, model.seq_len));
  require(train.micro_batch >= 0, "train.micro_batch", train.micro_batch,
          "must be >= 0 (0: the whole batch of a rank)");
  if (train.micro_batch > 0)
    require(train.global_batch % train.micro_batch == 0, "train.micro_batch", train.micro_batch,
            fmt::format("must divide train.global_batch = {}", train.global_batch));
  require(train.lr > 0, "train.lr", train.lr, "must be > 0");
  require(model.init_std > 0 || !model.init.empty(), "model.init_std", model.init_std,
          "must be > 0, because weights that are all 0 get no gradient");
  require(run.check_replicas_every >= 0, "run.check_replicas_every", run.check_replicas_every,
          "must be >= 0 (0: never)");
  require(run.check_products_every >= 0, "run.check_products_every", run.check_products_every,
          "must be >= 0 (0: never)");
  auto require_fraction = [](double value, std::string_view key) {
    require(value >= 0 && value < 1, key, value, "must be >= 0 and < 1");
  };
  require_fraction(train.beta1, "train.beta1");
  require_fraction(train.beta2, "train.beta2");
  require_fraction(train.momentum, "train.momentum");
  require(train.eps > 0, "train.eps", train.eps, "must be > 0");
  require(train.weight_decay >= 0, "train.weight_decay", train.weight_decay, "must be >= 0 (0: no weight decay)");
  require(train.lr_floor >= 0 && train.lr_floor <= 1, "train.lr_floor", train.lr_floor,
          "must be 0 to 1, a fraction of train.lr");
  require(train.decay_steps >= 0, "train.decay_steps", train.decay_steps, "must be >= 0 (0: a tenth of the run)");
  require(train.max_minutes >= 0, "train.max_minutes", train.max_minutes, "must be >= 0 (0: no limit)");
  require(train.clip >= 0, "train.clip", train.clip, "must be >= 0 (0: no clipping)");
  require(train.warmup >= 0, "train.warmup", train.warmup, "must be >= 0 (0: no warm-up)");
  require(train.eval_every >= 0, "train.eval_every", train.eval_every, "must be >= 0 (0: only at the end)");
  require(train.eval_batches >= 1 && train.eval_batches <= 1'000'000'000, "train.eval_batches", train.eval_batches,
          "must be 1 to 1000000000");
  require_fraction(model.dropout, "model.dropout");
  require(model.seq_len >= 1, "model.seq_len", model.seq_len, "must be >= 1");
  require_fraction(data.val_fraction, "data.val_fraction");
  require(data.mask_rate > 0 && data.mask_rate < 1, "data.mask_rate", data.mask_rate, "must be > 0 and < 1");
  find_row("transport (comm.transport)", kTransports, comm.transport);
  comm::algorithm_id_of(comm::Op::all_reduce, comm.all_reduce);
  sync::check_words(sync_options(*this));
  require(comm.timeout_s > 0, "comm.timeout_s", comm.timeout_s, "must be > 0");
  require(comm.start_timeout_s > 0, "comm.start_timeout_s", comm.start_timeout_s, "must be > 0");
  require(comm.link_timeout_s > 0, "comm.link_timeout_s", comm.link_timeout_s, "must be > 0");
  require(parallel.layout.empty() || parallel.layout == "auto", "parallel.layout", parallel.layout,
          "must be auto or absent; without it set the axes dp, tp, pp, cp and ep");
  require(log.every >= 1, "log.every", log.every, "must be >= 1");
  require(checkpoint.keep >= 0, "checkpoint.keep", checkpoint.keep, "must be >= 0 (0: all)");
  require(!checkpoint.resume.empty(), "checkpoint.resume", "\"\"", "must be auto, none or the path of a checkpoint");
}

namespace {

bool uses_divergent_replicas(const SyncSection& sync) {
  return sync.method == "gossip" || sync.method == "local" || sync.method == "diloco";
}

// True if sync.method can run with this layout; used to suggest layouts. The checks in check_world reject other
// layouts.
bool sync_takes(const SyncSection& sync, const parallel::MeshShape& mesh) {
  if (sync.method == "ps" || sync.compress != "none" || sync.update_early) return mesh.size() == mesh.dp;
  return !uses_divergent_replicas(sync) || (mesh.cp == 1 && mesh.ep == 1);
}

}  // namespace

void RunConfig::check_world(int world) const {
  const parallel::Layout layout = layout_of(*this, world);
  parallel::check_layout(layout_sizes(*this), layout,
                         [this](const parallel::Layout& one) { return sync_takes(sync, one.mesh); });
  const int dp = layout.mesh.replicas();
  require(
      layout.mesh.pp == 1 || sync.accumulate != "reduced", "sync.accumulate", sync.accumulate,
      fmt::format("must be local: the {} pipeline stages (pp) accumulate micro-batches before they reduce gradients",
                  layout.mesh.pp));
  require(layout.mesh.ep == 1 || (sync.offload == "none" && sync.quantise == "none"), "parallel.ep", layout.mesh.ep,
          "needs sync.offload = none and sync.quantise = none: expert shards stay on the device");
  require(train.activations == "lean" || layout.mesh.cp == 1, "train.activations", train.activations,
          "must be lean with parallel.cp > 1: stored attention needs all tokens of a sequence on one rank");
  find_row("sync.method", sync::strategies(), sync.method);
  require(sync.bucket_mb > 0 && sync.first_bucket_mb > 0, "sync.bucket_mb", sync.bucket_mb,
          "must be > 0, like sync.first_bucket_mb");
  static constexpr Named<int> kBuckets[] = {{"fixed", 0}, {"observed", 1}, {"cycle", 2}};
  find_row("sync.buckets", kBuckets, sync.buckets);
  require(sync.fusion_mb > 0, "sync.fusion_mb", sync.fusion_mb, "must be > 0");
  require(sync.cycle_ms > 0, "sync.cycle_ms", sync.cycle_ms, "must be > 0");
  require(sync.prefetch >= (sync.offload_params == "none" ? 0 : -1), "sync.prefetch", sync.prefetch,
          "must be >= 0; -1 (measured) needs sync.offload_params = \"host\" or \"file\"");
  require(sync.group >= 0 && (sync.group == 0 || dp % sync.group == 0), "sync.group", sync.group,
          fmt::format("must be 0 (all) or a divisor of the {} replicas", dp));
  static constexpr Named<int> kOffloads[] = {{"none", 0}, {"host", 1}, {"file", 2}};
  static constexpr Named<int> kIo[] = {{"auto", 0}, {"uring", 1}, {"threads", 2}};
  find_row("sync.offload", kOffloads, sync.offload);
  find_row("sync.offload_params", kOffloads, sync.offload_params);
  find_row("sync.offload_io", kIo, sync.offload_io);
  require(sync.offload_params == "none" || (sync.method == "zero3" && sync.offload != "none"), "sync.offload_params",
          sync.offload_params,
          fmt::format("needs sync.method = \"zero3\" and sync.offload = \"host\" or \"file\"; "
                      "got sync.method = {}, sync.offload = {}",
                      sync.method, sync.offload));
  require(sync.offload_params == "none" || sync.quantise == "none", "sync.offload_params", sync.offload_params,
          "cannot be combined with sync.quantise, because ZeRO++ gathers weights from the device. Remove one of them");
  require(!sync.direct_access || (sync.offload_params != "none" && dp == 1), "sync.direct_access", sync.direct_access,
          "needs one replica and sync.offload_params = \"host\" or \"file\"");
  require(sync.delay_update >= 0, "sync.delay_update", sync.delay_update, "must be >= 0 steps (0: never)");
  require(sync.offload_host_mb >= 0, "sync.offload_host_mb", sync.offload_host_mb, "must be >= 0 (0: none)");
  if (sync.split_master) {
    const auto halves = [&](bool fits, std::string_view why) {
      require(fits, "sync.split_master", sync.split_master, why);
    };
    halves(storage_type(train.precision) == DType::bf16, "needs train.precision = \"bf16\"");
    halves(train.optimizer != "sgd", "needs train.optimizer = \"adamw\" or \"adam\"");
    halves(sync.offload == "none" || sync.update_early,
           "needs sync.update_early = true if master weights are offloaded");
    halves(sync.offload != "none" ||
               ((sync.method == "allreduce" || sync.method.starts_with("zero")) && sync.compress == "none"),
           "needs sync.method = \"allreduce\" or zero1 to zero3, and no sync.compress: other methods read the master "
           "weights");
  }
  if (sync.update_early) {
    const auto early = [](bool fits, std::string_view key, const auto& value, std::string_view why) {
      require(fits, key, value, fmt::format("{} with sync.update_early", why));
    };
    early(sync.method == "zero3" && sync.offload != "none", "sync.method", sync.method,
          "must be zero3 (with sync.offload = \"host\" or \"file\")");
    early(sync.offload_params != "file", "sync.offload_params", sync.offload_params, "must be none or host");
    early(train.clip == 0, "train.clip", train.clip, "must be 0 (gradients are applied before their norm is known)");
    early(train.precision != "fp16", "train.precision", train.precision,
          "must be bf16 or fp32 (a step cannot be skipped after its first update)");
    early(sync.delay_update == 0, "sync.delay_update", sync.delay_update, "must be 0");
    early(sync.quantise == "none", "sync.quantise", sync.quantise, "must be none");
    early(layout.mesh.size() == layout.mesh.dp, "parallel.dp", layout.mesh.dp,
          "must be the number of ranks (tp, pp, cp and ep = 1)");
    early(sync.accumulate == "local" || train.micro_batch == 0 || train.micro_batch * dp == train.global_batch,
          "train.micro_batch", train.micro_batch,
          "must be 0 (one micro-batch per step), unless sync.accumulate = \"local\",");
  }
  require(sync.offload_tile >= 1024, "sync.offload_tile", sync.offload_tile, "must be >= 1024 elements");
  require(sync.quantise_block >= 1, "sync.quantise_block", sync.quantise_block, "must be >= 1 element");
  require(sync.quantise_grad_block >= 1, "sync.quantise_grad_block", sync.quantise_grad_block, "must be >= 1 element");
  require(run.device_memory_mb >= 0, "run.device_memory_mb", run.device_memory_mb, "must be >= 0 (0: no limit)");
  require(comm.nodes >= 0 && (comm.nodes == 0 || world % comm.nodes == 0), "comm.nodes", comm.nodes,
          fmt::format("must be 0 (detected) or a divisor of the {} ranks", world));
  const bool divergent = uses_divergent_replicas(sync);
  require(!divergent || (layout.mesh.cp == 1 && layout.mesh.ep == 1), "sync.method", sync.method,
          "needs parallel.cp = 1 and parallel.ep = 1: divergent replicas hold whole sequences and all experts");
  require(!divergent || sync.offload == "none", "sync.offload", sync.offload,
          "must be none with gossip, local and diloco: divergent replicas keep optimizer state with the weights");
  require(sync.consensus_every >= 0, "sync.consensus_every", sync.consensus_every, "must be >= 0 steps (0: never)");
  require(sync.method != "ps" || layout.mesh.size() == layout.mesh.dp, "sync.method", sync.method,
          "needs parallel.tp, pp, cp and ep = 1: each worker holds the whole model");
  require(sync.method != "ps" || sync.offload == "none", "sync.offload", sync.offload,
          "must be none with ps: servers hold the optimizer state");
  const sync::PsOptions& ps = sync.ps;
  const bool arrival_order = sync.method == "ps" && dp > 1 && ps.replay.empty() &&
                             (ps.mode == "async" || (ps.mode == "ssp" && ps.staleness > 0));
  require(
      !run.deterministic || !arrival_order, "run.deterministic", run.deterministic,
      fmt::format("cannot be combined with sync.ps_mode = {}, because servers apply pushes in the order of arrival. "
                  "Set sync.ps_mode = \"sync\", or set sync.replay to a recorded order",
                  ps.mode));
  sync::check_compression(sync_options(*this));
  require(sync.compress == "none" || train.precision != "fp16", "train.precision", train.precision,
          "must not be fp16 with sync.compress: a changing loss scale would rescale the error feedback. Use bf16");
  require(sync.feedback != "onebit_adam" || (train.optimizer != "sgd" && sync.offload == "none"), "sync.feedback",
          sync.feedback, "needs train.optimizer = adamw or adam, and sync.offload = none");
  require(sync.compress == "none" || layout.mesh.size() == layout.mesh.dp, "sync.compress", sync.compress,
          "needs parallel.tp, pp, cp and ep = 1: shards of a model would compress shared parameters separately");
  require(
      parallel.layout.empty(), "parallel.layout", parallel.layout,
      "is for espalier train, which asks the planner before ranks start; set the axes dp, tp, pp, cp and ep instead");
}

}  // namespace esp::train
