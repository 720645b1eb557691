// What can be known of a run before its ranks begin. Whoever starts them asks here, so that a mistake is told once and
// not by each of them.
#pragma once

#include <string>

#include "esp/train/run_config.h"

namespace esp::train {

// UsageError or IoError as the ranks would have it: names, layout, device, the files that are named, the run folder.
// Nothing is read through, and nothing is made but the folder. `world` 0: how many ranks there will be is not known.
void check_before_ranks(const RunConfig& config, int world);

// IoError when checkpoints could not be written where checkpoint.dir says. Nothing is left behind.
void check_checkpoint_folder(const RunConfig& config);
// IoError names the keys that give another.
void make_run_folder(const std::string& folder);

}  // namespace esp::train
