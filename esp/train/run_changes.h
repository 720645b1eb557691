// Compares a run that resumes in a run folder with the previous run there. If the model, the data, the optimizer, the
// seed, the method or the content of data files has changed, the run is refused unless the user accepts the changes.
// Changes of other keys are listed only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/train/run_config.h"

namespace esp::train {

struct KeyChange {
  std::string key, before, now;

  std::string text() const;  // for example «train.lr: 0.001 → 0.002»
};

struct RunChanges {
  std::vector<KeyChange> result, others;  // changes of keys that affect the result, and of other keys (Field::effect)
  std::vector<KeyChange> files;           // data files whose content has changed (data_identity.h)
  // Text about a learning-rate schedule that ends at train.steps, if train.steps has changed; else empty.
  std::string schedule;
};

// Compares normalised configurations (run_keys.h). A preset is equal to the same keys written out, and a default is
// equal to the same explicit value. A 0 that the data or the ranks fill in is equal to the filled-in value.
RunChanges diff_run_configs(const RunConfig& before, const RunConfig& now);

// Parses the run file that is stored in a checkpoint's state; empty if there is none. `name` is the checkpoint's name
// in messages.
std::optional<RunConfig> checkpoint_run_config(const Json& state, const std::string& name);

// Compares `config` with the run that it resumes in its folder. Empty if the run starts from scratch. Unless
// `accepted`, throws UsageError with the changed keys that affect the result and the changed files, or IoError if only
// files have changed. Both messages suggest a fix. Reads files, so call it on one rank.
RunChanges check_changes(const RunConfig& config, bool accepted);

}  // namespace esp::train
