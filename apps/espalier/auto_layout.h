// parallel.layout = "auto": the planner's choice for a run, from a cluster file that describes this machine.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/plan_inputs.h"
#include "esp/plan/cluster.h"
#include "esp/plan/search/space.h"
#include "esp/train/run_config.h"

namespace esp::app {

// The layouts a run may take: what its file fixes (ZeRO, offload, recomputation, a micro-batch if one is named, rules
// of its way of agreeing) stays.
plan::Space space_of_run(const train::RunConfig& config, const plan::ModelShape& shape, const plan::Cluster& cluster,
                         const plan::Policy& base, const std::vector<int>& ranks);

// Of a space for any program what this one trains: its schedules and ways of context, stages cut by it, layouts that
// keep its rules. UsageError: a model it cannot train.
void keep_trainable(plan::Space& space, const PlanInputs& inputs);

// What to set in the run file for a policy, section.key=value each, parallel.layout cleared and what the planner
// expects noted. UsageError: what this runtime does not have.
std::vector<std::string> overrides_of(const plan::Policy& policy, double predicted_s);

// A run file that trains by the policy: the one of --run, or a new one of --model. UsageError: the trainer refuses it.
std::string run_file_of(const PlanInputs& inputs, const plan::Policy& policy);

// Whether the run asks; UsageError for any word but auto.
bool asks_for_layout(const train::RunConfig& config);

// The choice for `world` ranks, told on stderr. `cluster` names a file or a shipped cluster; empty: this machine's,
// from the cache folder, measured and kept there when it is not there yet.
std::vector<std::string> choose_layout(const train::RunConfig& config, int world, const std::string& cluster);

}  // namespace esp::app
