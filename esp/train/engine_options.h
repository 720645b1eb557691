// Converts run-file settings to the options of lower modules (sync, optimizer, offload).
#pragma once

#include "esp/optim/optimizer.h"
#include "esp/sync/strategy.h"
#include "esp/sync/tier/offload.h"
#include "esp/train/run_config.h"

namespace esp::train {

sync::Options sync_options(const RunConfig& config);
// Options of the file tier. Creates its folder if the run uses the tier; IoError if that fails.
sync::FileOptions file_options(const RunConfig& config);
optim::OptimizerOptions optimizer_options(const TrainSection& section);
double learning_rate_at(const TrainSection& section, int64_t step);

}  // namespace esp::train
