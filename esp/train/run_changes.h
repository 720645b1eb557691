// A run folder knows the run file of the run in it. A run that goes on there with another model, data, optimizer, seed
// or method, or with data files that changed, is refused, unless its user accepts the changes; other keys may differ
// and are listed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "esp/base/json.h"
#include "esp/train/run_config.h"

namespace esp::train {

struct KeyChange {
  std::string key, before, now;

  std::string text() const;  // «train.lr: 0.001 → 0.002»
};

struct RunChanges {
  std::vector<KeyChange> result, others;  // by Field::effect
  std::vector<KeyChange> files;           // whose content is another one (data_identity.h)
  // Of a schedule whose end train.steps decides: what another number of steps means for it. Empty: nothing.
  std::string schedule;
};

// Compared in one form (run_keys.h): a preset equals its keys spelled out, a default that is given one that is not.
// What the data or the ranks decide (0) equals what they decided.
RunChanges changes_between(const RunConfig& before, const RunConfig& now);

// The run that made a checkpoint, of its state; nothing where it was not written. `name` is for messages.
std::optional<RunConfig> run_of_checkpoint(const Json& state, const std::string& name);

// Changes since the run that `config` would go on from in its folder; none where it begins from scratch. Where they are
// not `accepted`, UsageError names the keys that change the result and the files that changed, IoError the files where
// that is all; both say what to do. Reads files; one rank asks.
RunChanges check_changes(const RunConfig& config, bool accepted);

}  // namespace esp::train
