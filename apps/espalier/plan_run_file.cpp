// Converts a run file to the planner's model and policy.
#include <algorithm>

#include "apps/espalier/plan_inputs.h"
#include "esp/data/tokenizer/tokenizer.h"
#include "esp/train/rank_partition.h"

namespace esp::app {
namespace {

int zero_stage(const std::string& method) {
  return method == "zero1" ? 1 : method == "zero2" ? 2 : method == "zero3" ? 3 : 0;
}

plan::RecomputePolicy recompute_of(const std::string& name) {
  return name == "full"        ? plan::RecomputePolicy::full
         : name == "selective" ? plan::RecomputePolicy::selective
                               : plan::RecomputePolicy::none;
}

plan::OffloadTarget offload_of(const std::string& name) {
  return name == "host"   ? plan::OffloadTarget::host
         : name == "file" ? plan::OffloadTarget::file
                          : plan::OffloadTarget::none;
}

bool names(const std::string& list, const char* one) {
  return list.find(one) != std::string::npos;
}

}  // namespace

plan::ModelShape shape_of_run(const train::RunConfig& config) {
  model::ModelConfig model = train::model_config(config.model);
  if (model.vocab == 0) model.vocab = data::load_tokenizer(config.data.tokenizer)->vocab_size();
  model.check();
  return plan::shape_of(model, config.model.preset.empty() ? config.run.name : config.model.preset);
}

plan::Policy policy_of_run(const train::RunConfig& config, int world) {
  const parallel::Layout layout = train::layout_of(config, world);
  plan::Policy p;
  p.tp = layout.mesh.tp;
  p.pp = layout.mesh.pp;
  p.dp = layout.mesh.dp;
  p.cp = layout.mesh.cp;
  p.ep = layout.mesh.ep;
  p.sequence = config.parallel.sequence;
  p.context = config.parallel.context;
  p.schedule = config.parallel.schedule;
  p.interleave = static_cast<int>(config.parallel.interleave);
  p.global_batch = config.train.global_batch;
  p.micro_batch = config.train.micro_batch > 0 ? config.train.micro_batch : std::max<int64_t>(1, p.global_batch / p.dp);
  p.precision = config.train.precision;
  p.recompute = recompute_of(config.train.recompute);
  p.recompute_layers = static_cast<int>(config.train.recompute_layers);
  p.flash = config.train.activations == "lean";
  p.dropout = config.model.dropout > 0;
  p.optimizer = config.train.optimizer;
  if (config.sync.split_master) p.master_bytes = 2;
  p.zero = zero_stage(config.sync.method);
  p.shard_group = static_cast<int>(config.sync.group);
  p.keep_gathered = config.sync.keep_gathered;
  p.quantised_weights = names(config.sync.quantise, "qwz");
  p.secondary_shard = names(config.sync.quantise, "hpz");
  p.quantised_gradients = names(config.sync.quantise, "qgz");
  p.offload = offload_of(config.sync.offload);
  p.compress = config.sync.compress;
  p.gradients_fp32 = false;  // the trainer stores gradients in the type of the weights
  p.software = "espalier";
  p.threads = static_cast<int>(std::max<int64_t>(1, config.run.threads));
  return p;
}

}  // namespace esp::app
