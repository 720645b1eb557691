// SampleLog: samples/rank-K.jsonl in the run folder (log.samples). It lists the samples that this rank has read, one
// line per batch, written before the batch is used. `rows` contains fingerprints of the token ids, so that a script can
// compare the log with the data itself, and not only with sample numbers.
#pragma once

#include <string>

#include "esp/data/batch.h"
#include "esp/obs/file.h"

namespace esp::train {

class SampleLog {
 public:
  // Appends to an existing file. `replica` is the number of the data-parallel replica.
  SampleLog(const std::string& run_folder, int rank, int replica);
  void note(int64_t step, const data::Batch& batch);  // `step` counts from 1, as in metrics.jsonl

 private:
  obs::File file_;
  int replica_;
};

}  // namespace esp::train
