// Preflight checks: the checks that need no ranks. The process that starts the ranks runs them, so that a mistake is
// reported once and not by every rank.
#pragma once

#include <string>

#include "esp/train/run_config.h"

namespace esp::train {

// Checks names, layout, device, the files named in the run file, and the run folder. Throws the same UsageError or
// IoError as the ranks would. Reads no data and creates only the run folder. With `world` = 0 the number of ranks is
// unknown.
void check_before_launch(const RunConfig& config, int world);

// IoError if checkpoints could not be written to checkpoint.dir. Removes everything that the check creates.
void check_checkpoint_folder(const RunConfig& config);
// Creates the run folder. If that fails, the IoError names the keys that choose another folder.
void make_run_folder(const std::string& folder);

}  // namespace esp::train
