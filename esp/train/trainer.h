// Runs training from start to end: sets up or resumes, trains, evaluates, writes checkpoints and reports, and stops on
// request.
#pragma once

#include <string>

#include "esp/base/error.h"
#include "esp/base/log.h"
#include "esp/train/engine.h"
#include "esp/train/machine_peak.h"
#include "esp/train/progress.h"
#include "esp/train/rank_identity.h"
#include "esp/train/recovery.h"
#include "esp/train/run_config.h"

namespace esp::train {

struct TrainOutcome {
  enum class StopReason { done, signal, time, failed } stop_reason = StopReason::done;
  std::string folder, checkpoint;  // `checkpoint` is the path of the last checkpoint written, or empty
  int64_t steps = 0;
  bool already_done = false;  // the run was complete before: no step was made and nothing was written
  double final_loss = 0;
};

// Every rank calls it. Rank 0 logs and writes the files of the run. After a rank failure, the other ranks recover as
// far as `recovery` supports it. By default it supports nothing, and the error is thrown.
TrainOutcome train(const RunConfig& config, const Log& log, const Progress::Options& progress, JobContext job = {},
                   const RecoveryOptions& recovery = {}, MachinePeak machine = MachinePeak());

}  // namespace esp::train
