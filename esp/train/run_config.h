// The run file: every section as a plain struct with defaults, read from TOML, overridden by section.key=value, and
// written back resolved. An unknown key is an error that names the nearest known one.
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
  std::string name;  // empty: the run file's name without its ending; read_run_config fills it in
  std::string dir;   // empty: runs/<name>
  std::string file;  // the run file this one was read from, in a resolved one
  int64_t seed = 1;
  std::string device = "cpu";
  bool deterministic = false;   // fixed orders everywhere; the CPU path always has them
  double device_memory_mb = 0;  // the device tier's budget; 0: none
  bool graph = true;            // on a GPU: record a step's work once and replay it
  // Silent errors: steps between comparisons of the copies, and between checks of one matrix product; 0: never.
  int64_t check_replicas_every = 100, check_products_every = 10;
  int64_t threads = 0;  // compute threads of this rank; 0: the cores there are, shared by the ranks of this host
};

struct ModelSection {
  std::string preset;
  std::string init;  // a checkpoint or a Hugging Face folder whose shape and parameters the run begins with
  std::string arch = "gpt";
  int64_t layers = 2, heads = 2, kv_heads = 0, dim = 64, ffn = 0;
  int64_t vocab = 0;  // 0: the tokenizer's
  int64_t seq_len = 64;
  double dropout = 0;
  std::string activation = "gelu", norm = "layer", positions = "learned";
  bool gated = false, post_norm = false, bias = true, tie_embeddings = true, pooler = false;
  double norm_eps = 1e-5;
  std::string rope_scaling = "none";
  kernel::RotaryAngles rope;  // its scaling is the word above
  double init_std = 0.02;
  int64_t experts = 0, experts_per_token = 2, expert_every = 1, shared_expert = 0;
  double expert_capacity = 0, expert_aux = 0.01, expert_z = 0;
  int64_t type_vocab = 0, classes = 0;
  bool embedding_norm = true, zero_positions = false, headless = false;
};

struct DataSection {
  std::vector<std::string> train, val;
  std::string tokenizer = "byte";
  std::string objective;  // empty: what the architecture is made for
  std::string order = "shuffled", text_key = "text", target_key = "target", label_key = "label";
  std::string bin_type;  // of a raw .bin; empty: as its sidecar says, else u16
  std::string cache;     // folder of token caches; empty: beside the run
  double mask_rate = 0.15;
  double val_fraction = 0;            // with no val: this part of the train tokens, from the end
  std::vector<std::string> identity;  // what the files hold (data_identity.h); in a resolved one
};

struct TrainSection {
  int64_t steps = 100, global_batch = 8, micro_batch = 0;  // micro_batch 0: the whole of a rank's share at once
  std::string optimizer = "adamw";
  double lr = 3e-4;
  std::string schedule = "cosine";
  int64_t warmup = 0, decay_steps = 0;
  double lr_floor = 0.1, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0.9;
  bool nesterov = false;
  double clip = 1;
  std::string precision = "fp32", recompute = "none", activations = "lean";
  int64_t recompute_layers = -1;
  int64_t eval_every = 0, eval_batches = 20;  // batches of global_batch sequences
  double max_minutes = 0;                     // stop, with a checkpoint, after this long; 0: no limit
};

struct ParallelSection {
  int64_t dp = 0, tp = 1, pp = 1, cp = 1, ep = 1;
  bool sequence = false;
  std::string context = "ring", schedule = "1f1b";
  int64_t interleave = 1;
  std::string layout;
  double predicted_s = 0;  // a step's time as the planner expects it; 0: it was not asked
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

// A number of steps (0: never), or "auto": as often as the measured cost allows (checkpoint_interval.h).
struct StepInterval {
  std::optional<int64_t> steps;  // none: auto
  bool automatic() const { return !steps; }
  bool ends_at(int64_t step) const { return steps && *steps > 0 && step % *steps == 0; }
  bool operator==(const StepInterval&) const = default;
};

struct CheckpointSection {
  std::string dir;     // empty: checkpoints/ in the run folder
  StepInterval every;  // 0 steps: at the end and on a signal only
  int64_t keep = 3;
  bool async = false;
  bool at_end = true;
  std::string resume = "auto";  // auto | none | a checkpoint's path
  StepInterval snapshot_every;  // between snapshots in the host's memory; 0 steps: none
  std::string snapshot_dir;     // empty: the launcher's
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

  void check() const;                 // UsageError: what does not fit together, and what would
  void check_world(int world) const;  // UsageError: a layout that so many ranks do not make
};

// What another value of a key means for a run that resumes.
enum class Effect {
  result,       // other weights or other reported losses, beyond rounding: refused unless accepted
  none,         // steps, log, checkpoint, hardware, layout: listed in the log
  not_compared  // names, and what other keys spell out
};

// One key: where it lives and what it is for. The one description that reading, overriding, comparing, writing and help
// share. `read_by`: the choices that read the key, empty: every run (run_keys.h).
struct Field {
  std::string_view section, key;
  Effect effect;
  std::string_view help;
  std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, StepInterval*> value;
  std::string_view read_by = {};

  std::string name() const;        // section.key
  std::string value_text() const;  // as TOML
};
std::vector<Field> fields(RunConfig& config);

// `text` is TOML, `name` its file for messages (UsageError with line and column); overrides are section.key=value in
// the order given. A preset fills [model] first, whatever else stands there overrides it. A key that this run does not
// read is refused where its value is not the default. Opens no other file.
RunConfig parse_run_config(std::string_view text, std::string_view name, const std::vector<std::string>& overrides);
// A resolved run file, as to_toml wrote it: keys that the run does not read are accepted. With UnknownKeys::skip also
// keys of other versions, and nothing is checked.
enum class UnknownKeys { refuse, skip };
RunConfig parse_resolved_config(std::string_view text, std::string_view name, UnknownKeys unknown);
// The run file of a run about to begin: model.init, where given, is opened and fills [model] like a preset, and the
// tokenizer with it. `copy`: the text that stood there when the job began, which counts instead of the file's.
RunConfig read_run_config(const std::string& path, const std::vector<std::string>& overrides,
                          const std::optional<std::string>& copy = {});
inline constexpr size_t kMaxRunFileBytes = size_t{1} << 20;
std::string to_toml(const RunConfig& config);
// Every key with its default and what it is for, as Markdown: docs/run_file.md is this.
std::string describe_keys();

// What the strings mean; UsageError lists the known names.
model::ModelConfig model_config(const ModelSection& section);
ModelSection model_section(const model::ModelConfig& config);
DType storage_type(std::string_view precision);
std::string precision_name(DType storage);
nn::RecomputeMode parse_recompute(std::string_view name);
std::string run_folder_of(const RunConfig& config);
std::string checkpoint_folder_of(const RunConfig& config);

}  // namespace esp::train
