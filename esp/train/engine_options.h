// What the rooms below want to know of a run file: their options out of its sections.
#pragma once

#include "esp/optim/optimizer.h"
#include "esp/sync/strategy.h"
#include "esp/sync/tier/offload.h"
#include "esp/train/run_config.h"

namespace esp::train {

sync::Options sync_options(const RunConfig& config);
// Makes the file tier's folder where there is to be one; IoError.
sync::FileOptions file_options(const RunConfig& config);
optim::OptimizerOptions optimizer_options(const TrainSection& section);
double rate_at(const TrainSection& section, int64_t step);

}  // namespace esp::train
