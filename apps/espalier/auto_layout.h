// parallel.layout = "auto": the planner chooses the layout of a run. It uses a cluster file that describes this
// machine.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/plan_inputs.h"
#include "esp/plan/cluster.h"
#include "esp/plan/search/space.h"
#include "esp/train/run_config.h"

namespace esp::app {

// The search space of a run. Settings that the run file already fixes stay fixed: ZeRO, offload, recomputation, a given
// micro-batch, and the settings that the sync method requires.
plan::SearchSpace run_search_space(const train::RunConfig& config, const plan::ModelShape& shape,
                                   const plan::Cluster& cluster, const plan::Policy& base,
                                   const std::vector<int>& ranks);

// Restricts a search space to layouts that this trainer can run: its schedules, context-parallel methods, stage
// division and layout rules. UsageError: the trainer does not support the model.
void restrict_to_trainable(plan::SearchSpace& space, const PlanInputs& inputs);

// Overrides (section.key=value) that give a run file the policy's layout. They also clear parallel.layout and set the
// predicted step time. UsageError: this runtime does not support the policy.
std::vector<std::string> policy_overrides(const plan::Policy& policy, double predicted_s);

// The text of a run file for the policy: the file given with --run, changed, or a new file for the model given with
// --model. UsageError: the trainer rejects it.
std::string trainable_run_file(const PlanInputs& inputs, const plan::Policy& policy);

// Whether the run file sets parallel.layout = auto; UsageError for any other value.
bool is_auto_layout(const train::RunConfig& config);

// Overrides of the run file for `world` ranks; prints the chosen layout to stderr. `cluster` names a file or a shipped
// cluster. If it is empty, this machine's cluster file in the cache folder is used. If that file does not exist, the
// machine is measured first.
std::vector<std::string> choose_layout(const train::RunConfig& config, int world, const std::string& cluster);

}  // namespace esp::app
