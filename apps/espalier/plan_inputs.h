// What every `espalier plan` subcommand is told: a model, a cluster and a policy, from names, files and options. The
// same run file that drives the trainer describes the policy; options override it.
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
  // Model: a preset's name, a config.json or a folder with one; or a run file's [model].
  std::string model, run;
  std::vector<std::string> overrides;  // --set of the run file
  std::optional<int64_t> seq, vocab;
  // Cluster: a name or a file; or so many of a processor.
  std::string cluster, processor, catalog;
  std::optional<int> gpus, per_node;
  std::optional<double> net_gbps;
  // Policy.
  std::optional<int> tp, pp, dp, cp, ep, interleave, zero, shard_group, recompute_layers, threads, expert_tp,
      expert_nodes;
  std::optional<int64_t> micro_batch, global_batch;
  std::string schedule, context, precision, recompute, offload, software, optimizer, stage_layers, compress;
  bool sequence = false, no_flash = false, no_overlap = false, overlap_tp = false, dropout = false,
       keep_gathered = false, quantised = false, vocab_parallel = false;
};

// `policy`: whether the layout can be given too (a search finds it).
void add_plan_inputs(const Arguments& app, PlanInputs& inputs, bool policy = true);

struct Planned {
  plan::ModelShape shape;
  plan::Cluster cluster;
  plan::Policy policy;
  std::vector<std::string> assumed;
};
// UsageError (or IoError): what is missing, unknown or absurd, and what would do. The layout itself is not checked
// here.
Planned read_plan_inputs(const PlanInputs& inputs);

// The pieces, for those who need one.
plan::ModelShape plan_shape(const PlanInputs& inputs, std::vector<std::string>& assumed);
plan::Cluster plan_cluster(const PlanInputs& inputs, std::vector<std::string>& assumed);

// A run file as the planner sees it: our own runtime as the software.
plan::ModelShape shape_of_run(const train::RunConfig& config);
plan::Policy policy_of_run(const train::RunConfig& config, int world);

}  // namespace esp::app
