// Inputs of every `espalier plan` subcommand: a model, a cluster and a policy, given as names, files and options. A run
// file of the trainer can also describe the policy; options override it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/espalier/arguments.h"
#include "esp/plan/catalog.h"
#include "esp/plan/cluster.h"
#include "esp/plan/policy.h"
#include "esp/plan/shape.h"
#include "esp/train/run_config.h"

namespace esp::app {

struct PlanInputs {
  // The model: the name of a preset, a config.json or its folder; or `run`, a run file with [model].
  std::string model, run;
  std::vector<std::string> overrides;  // --set overrides of the run file
  std::optional<int64_t> seq, vocab;
  // The cluster: its name or file, or `gpus` devices of one type.
  std::string cluster, processor, catalog;
  std::optional<int> gpus, per_node;
  std::optional<double> net_gbps;
  // The policy.
  std::optional<int> tp, pp, dp, cp, ep, interleave, zero, shard_group, recompute_layers, threads, expert_tp,
      expert_nodes;
  std::optional<int64_t> micro_batch, global_batch;
  std::string schedule, context, precision, recompute, offload, software, optimizer, stage_layers, compress;
  bool sequence = false, no_flash = false, no_overlap = false, overlap_tp = false, dropout = false,
       keep_gathered = false, quantised = false, vocab_parallel = false;
};

// Adds the options that set `inputs`. `policy`: adds the options of the layout too; not for a search, which finds the
// layout.
void add_plan_inputs(const Arguments& app, PlanInputs& inputs, bool policy = true);

struct ResolvedPlan {
  plan::ModelShape shape;
  plan::Cluster cluster;
  plan::Policy policy;
  std::vector<std::string> assumed;  // values that the user did not give: "dp = 4"
};
// Resolves all inputs. UsageError or IoError: a value is missing, unknown or invalid; the message lists valid ones.
// Does not check that the layout is valid.
ResolvedPlan read_plan_inputs(const PlanInputs& inputs);

// Resolve only the model, or only the cluster.
plan::ModelShape plan_shape(const PlanInputs& inputs, std::vector<std::string>& assumed);
plan::Cluster plan_cluster(const PlanInputs& inputs, std::vector<std::string>& assumed);

// Convert a run file to the planner's model and policy, with software «espalier».
plan::ModelShape shape_of_run(const train::RunConfig& config);
plan::Policy policy_of_run(const train::RunConfig& config, int world);

}  // namespace esp::app
