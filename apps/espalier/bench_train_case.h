// One case of `bench train`: measures all candidates in turn and returns the rows.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/bench_train_candidate.h"
#include "apps/espalier/cpu_load.h"

namespace esp::app {

// Peak rates of the machine with the case's total number of threads, FLOP/s.
struct Ceilings {
  double ours = 0, openblas = 0, peak = 0;
  std::string openblas_core;
  double best() const;
};

struct Measured {
  TrainRow row;
  double of_sgemm = 0;    // of the peak's share of its threads
  double our_speed = 0;   // the first row's time over this one's, by round, per token; 0 for the first
  double exposed_ms = 0;  // per step, mean over ranks; this program only
  uint64_t pool_bytes = 0;
  double loss = 0;
  std::string about;  // version and BLAS of a baseline
};

struct CaseResult {
  TrainCase it;
  Ceilings ceilings;
  std::vector<Measured> rows;  // this program first
  CpuLoad::Shares disturbed;
};

CaseResult run_case(const TrainBench& bench, const TrainCase& it);

}  // namespace esp::app
