#include "esp/train/engine_options.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/optim/lr_schedule.h"

namespace esp::train {

sync::Options sync_options(const RunConfig& config) {
  sync::Options o;
  o.method = config.sync.method;
  o.bucket_mb = config.sync.bucket_mb;
  o.first_bucket_mb = config.sync.first_bucket_mb;
  o.buckets = config.sync.buckets;
  o.fusion_mb = config.sync.fusion_mb;
  o.cycle_ms = config.sync.cycle_ms;
  o.wire = config.sync.wire;
  o.compress = config.sync.compress;
  o.feedback = config.sync.feedback;
  o.force = config.sync.force;
  o.onebit_warmup = config.sync.onebit_warmup;
  o.accumulate = config.sync.accumulate;
  o.prefetch = config.sync.prefetch;
  o.keep_gathered = config.sync.keep_gathered;
  o.group = config.sync.group;
  o.quantise = config.sync.quantise;
  o.quantise_block = config.sync.quantise_block;
  o.quantise_grad_block = config.sync.quantise_grad_block;
  o.offload_params = config.sync.offload_params;
  o.update_early = config.sync.update_early;
  o.direct_access = config.sync.direct_access;
  o.topology = config.sync.topology;
  o.gossip_mode = config.sync.gossip_mode;
  o.tracking = config.sync.tracking;
  o.period = config.sync.period;
  o.consensus_every = config.sync.consensus_every;
  o.hierarchical = config.sync.hierarchical;
  o.tau = config.sync.tau;
  o.local_after = config.sync.local_after;
  o.sample = config.sync.sample;
  o.client_weights = config.sync.client_weights;
  o.average_state = config.sync.average_state;
  o.average_over = config.sync.average_over;
  o.gossip_step = config.sync.gossip_step;
  o.outer_lr = config.sync.outer_lr;
  o.outer_momentum = config.sync.outer_momentum;
  o.ps = config.sync.ps;
  o.seed = static_cast<uint64_t>(config.run.seed);
  o.deterministic = config.run.deterministic;
  return o;
}

sync::FileOptions file_options(const RunConfig& config) {
  sync::FileOptions files;
  files.folder = config.sync.offload_dir.empty() ? run_folder_of(config) + "/offload" : config.sync.offload_dir;
  files.io = config.sync.offload_io;
  if (config.sync.offload == "file" || config.sync.offload_params == "file") {
    std::error_code error;
    std::filesystem::create_directories(files.folder, error);
    if (error)
      throw IoError(
          fmt::format("sync.offload_dir = {}: cannot create the folder: {}. Name a folder on the disk for "
                      "offloaded state",
                      files.folder, error.message()));
  }
  return files;
}

optim::OptimizerOptions optimizer_options(const TrainSection& t) {
  optim::OptimizerOptions o;
  o.name = t.optimizer;
  o.beta1 = t.beta1;
  o.beta2 = t.beta2;
  o.eps = t.eps;
  o.weight_decay = t.weight_decay;
  o.momentum = t.momentum;
  o.nesterov = t.nesterov;
  return o;
}

double learning_rate_at(const TrainSection& t, int64_t step) {
  optim::LrScheduleOptions o;
  o.name = t.schedule;
  o.lr = t.lr;
  o.steps = t.steps;
  o.warmup = std::min(t.warmup, t.steps);
  o.floor = t.lr_floor;
  o.decay = t.decay_steps;
  return optim::learning_rate(o, step);
}

}  // namespace esp::train
