// The run file: every section is a plain struct with defaults. It is read from TOML, section.key=value overrides it,
// and it is written back resolved. An unknown key is an error that suggests the nearest known key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "esp/base/dtype.h"
#include "esp/model/config.h"
#include "esp/nn/forward_context.h"
#include "esp/sync/ps/options.h"

namespace esp::train {

struct RunSection {
  std::string name;  // empty: the run file's name without extension; set by read_run_config
  std::string dir;   // empty: runs/<name>
  std::string file;  // path of the original run file; set only in a resolved file
  int64_t seed = 1;
  std::string device = "cpu";
  bool deterministic = false;   // on a GPU: uses fixed summation orders everywhere (the CPU path always has them)
  double device_memory_mb = 0;  // budget for device memory; 0: no budget
  bool graph = true;            // on a GPU: captures a step as a CUDA graph and replays it (cuda_graph_runner.h)
  // Detection of silent errors: number of steps between two comparisons of replicas, and between two checks of a GEMM;
  // 0: never.
  int64_t check_replicas_every = 100, check_products_every = 10;
  int64_t threads = 0;  // number of compute threads of this rank; 0: the host's cores divided by its ranks
};

struct ModelSection {
  std::string preset;
  std::string init;  // checkpoint or Hugging Face folder from which shape and initial parameters are read
  std::string arch = "gpt";
  int64_t layers = 2, heads = 2, kv_heads = 0, dim = 64, ffn = 0;
  int64_t vocab = 0;  // 0: vocabulary size of the tokenizer
  int64_t seq_len = 64;
  double dropout = 0;
  std::string activation = "gelu", norm = "layer", positions = "learned";
  bool gated = false, post_norm = false, bias = true, tie_embeddings = true, pooler = false;
  double norm_eps = 1e-5;
  std::string rope_scaling = "none";
  kernel::RotaryAngles rope;  // the member `scaling` comes from the key rope_scaling
  double init_std = 0.02;
  int64_t experts = 0, experts_per_token = 2, expert_every = 1, shared_expert = 0;
  double expert_capacity = 0, expert_aux = 0.01, expert_z = 0;
  int64_t type_vocab = 0, classes = 0;
  bool embedding_norm = true, zero_positions = false, headless = false;
};

struct DataSection {
  std::vector<std::string> train, val;
  std::string tokenizer = "byte";
  std::string objective;  // empty: the default objective of the architecture
  std::string order = "shuffled", text_key = "text", target_key = "target", label_key = "label";
  std::string bin_type;  // token type of raw .bin files; empty: from the sidecar file, or u16 if there is none
  std::string cache;     // folder of token caches; empty: in the run folder
  double mask_rate = 0.15;
  double val_fraction = 0;  // if data.val is not set: this fraction at the end of the train tokens is held out
  std::vector<std::string> identity;  // identity of the data files (data_identity.h); set only in a resolved file
};

struct TrainSection {
  // micro_batch = 0: the whole share of a rank is one micro-batch
  int64_t steps = 100, global_batch = 8, micro_batch = 0;
  std::string optimizer = "adamw";
  double lr = 3e-4;
  std::string schedule = "cosine";
  int64_t warmup = 0, decay_steps = 0;
  double lr_floor = 0.1, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0.9;
  bool nesterov = false;
  double clip = 1;
  std::string precision = "fp32", recompute = "none", activations = "lean";
  int64_t recompute_layers = -1;
  int64_t eval_every = 0, eval_batches = 20;  // eval_batches is a number of batches, each of global_batch sequences
  double max_minutes = 0;                     // after this time the run stops with a checkpoint; 0: no limit
};

struct ParallelSection {
  int64_t dp = 0, tp = 1, pp = 1, cp = 1, ep = 1;
  bool sequence = false;
  std::string context = "ring", schedule = "1f1b";
  int64_t interleave = 1;
  std::string layout;
  double predicted_s = 0;  // step time in seconds that the planner predicted; 0: the planner was not used
};

struct SyncSection {
  std::string method = "allreduce";
  double bucket_mb = 25, first_bucket_mb = 1;
  std::string buckets = "fixed";
  double fusion_mb = 64, cycle_ms = 3;
  std::string wire = "auto", accumulate = "auto";
  int64_t prefetch = 1;
  bool keep_gathered = false;
  int64_t group = 0;
  std::string quantise = "none";
  int64_t quantise_block = 2048, quantise_grad_block = 128;
  std::string offload = "none", offload_params = "none", offload_dir, offload_io = "auto";
  bool direct_access = false, update_early = false, split_master = false;
  double offload_host_mb = 0;
  int64_t offload_tile = 4 << 20;
  int64_t delay_update = 0;
  std::string compress = "none", feedback = "none";
  bool force = false;
  int64_t onebit_warmup = 100;
  std::string topology = "ring", gossip_mode = "adapt_then_combine";
  bool tracking = false, hierarchical = false, average_state = false;
  int64_t period = 0, consensus_every = 0, tau = 8, local_after = 0, sample = 0;
  std::string client_weights = "equal", average_over = "allreduce";
  double gossip_step = 0.3;
  double outer_lr = 0.7, outer_momentum = 0.9;
  sync::PsOptions ps;
};

struct CommSection {
  std::string transport = "auto", all_reduce = "auto";
  int64_t nodes = 0;
  double timeout_s = 300, start_timeout_s = 600, link_timeout_s = 30;
};

// A number of steps (0: never), or "auto", which means as often as the measured cost allows (checkpoint_interval.h).
struct StepInterval {
  std::optional<int64_t> steps;  // empty: auto
  bool automatic() const { return !steps; }
  bool ends_at(int64_t step) const { return steps && *steps > 0 && step % *steps == 0; }
  bool operator==(const StepInterval&) const = default;
};

struct CheckpointSection {
  std::string dir;     // empty: the folder checkpoints/ in the run folder
  StepInterval every;  // 0: a checkpoint only at the end and on a signal
  int64_t keep = 3;
  bool async = false;
  bool at_end = true;
  std::string resume = "auto";  // "auto", "none" or the path of a checkpoint
  StepInterval snapshot_every;  // interval of snapshots in host memory; 0: no snapshots
  std::string snapshot_dir;     // folder of snapshots; empty: the launcher's folder
};

struct LogSection {
  int64_t every = 1;
  bool tensorboard = true, trace = false, samples = false;
};

struct RunConfig {
  RunSection run;
  ModelSection model;
  DataSection data;
  TrainSection train;
  ParallelSection parallel;
  SyncSection sync;
  CommSection comm;
  CheckpointSection checkpoint;
  LogSection log;

  void check() const;                 // UsageError with a fix if settings contradict each other
  void check_world(int world) const;  // UsageError if the layout does not fit `world` ranks
};

// How a changed value of a key affects a run that resumes.
enum class Effect {
  // Changes weights or reported losses by more than rounding: a changed value is refused unless the user accepts it.
  result,
  none,         // steps, log, checkpoint, hardware, layout: a changed value is only listed in the log
  not_compared  // not compared: names, and keys that only set defaults of other keys
};

// One key of the run file. The table of all keys is used to read, override, compare, write and explain a run file.
// `read_by` says under which conditions a run reads the key (run_keys.h); empty: every run reads it.
struct Field {
  std::string_view section, key;
  Effect effect;
  std::string_view help;
  std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, StepInterval*> value;
  std::string_view read_by = {};

  std::string name() const;        // for example "train.lr"
  std::string value_text() const;  // the value as TOML
};
std::vector<Field> fields(RunConfig& config);

// Parses a run file. `text` is TOML. `name` is its file name in messages (UsageError with line and column). Overrides
// are section.key=value and apply in order. A preset fills [model] first; explicit keys override the preset. If this
// run does not read a key, the key must have its default. Opens no other file.
RunConfig parse_run_config(std::string_view text, std::string_view name, const std::vector<std::string>& overrides);
// Parses a resolved run file (the output of to_toml). Keys that the run does not read are accepted. With
// UnknownKeys::skip, keys of other versions are accepted too, and nothing is checked.
enum class UnknownKeys { refuse, skip };
RunConfig parse_resolved_config(std::string_view text, std::string_view name, UnknownKeys unknown);
// Reads the run file of a new run. If model.init is set, opens it and fills [model] and the tokenizer from it, as a
// preset does. `copy` is the text that the file had when the job started; if given, it is used instead of the file.
RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          const std::optional<std::string>& copy = {});
inline constexpr size_t kMaxRunFileBytes = size_t{1} << 20;
std::string to_toml(const RunConfig& config);
// True if the text is the output of to_toml of this version.
bool is_resolved_text(const std::string& text);
// Markdown table of every key with its default and its meaning. docs/run_file.md is the output of this function.
std::string describe_keys();

// The next functions convert string values. UsageError lists the known names.
model::ModelConfig model_config(const ModelSection& section);
ModelSection model_section(const model::ModelConfig& config);
DType storage_type(std::string_view precision);
std::string precision_name(DType storage);
nn::RecomputeMode parse_recompute(std::string_view name);
std::string run_folder_of(const RunConfig& config);
std::string checkpoint_folder_of(const RunConfig& config);

}  // namespace esp::train
