// samples/rank-K.jsonl of the run folder (log.samples): which samples this rank has taken up, a line per batch, written
// before it is computed with. `rows` are fingerprints of what the model is shown, so that the data themselves can be
// held against the log, not only their numbers.
#pragma once

#include <string>

#include "esp/data/batch.h"
#include "esp/obs/file.h"

namespace esp::train {

class SampleLog {
 public:
  SampleLog(const std::string& run_folder, int rank,
            int copy);                                // appends; `copy` is the place among data-parallel ones
  void note(int64_t step, const data::Batch& batch);  // `step` counts from 1, as in metrics.jsonl

 private:
  obs::File file_;
  int copy_;
};

}  // namespace esp::train
