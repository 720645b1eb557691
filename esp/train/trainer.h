// A run from beginning to end: set up or resume, step, evaluate, checkpoint, report, stop when asked.
#pragma once

#include <string>

#include "esp/base/error.h"
#include "esp/base/log.h"
#include "esp/train/engine.h"
#include "esp/train/machine_peak.h"
#include "esp/train/progress.h"
#include "esp/train/recover.h"
#include "esp/train/run_config.h"
#include "esp/train/same_run.h"

namespace esp::train {

struct TrainOutcome {
  enum class Why { done, signal, time, failed } why = Why::done;
  std::string folder, checkpoint;  // checkpoint: the last one written, empty when none was
  int64_t steps = 0;
  bool nothing_left = false;  // it was done before: nothing was trained, and nothing written
  double final_loss = 0;
};

// Every rank of the run calls it; the first one speaks and writes what is of the whole run.
// When one is lost the others go on with what `recovery` offers; by default with nothing: the loss is thrown.
TrainOutcome train(const RunConfig& config, const Log& log, const Progress::Options& progress, Standing standing = {},
                   const Recovery& recovery = {}, MachinePeak machine = MachinePeak());

}  // namespace esp::train
