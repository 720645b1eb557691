// One case of `bench train`, measured: all contenders in turns, and what came of it.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/bench_train_contender.h"
#include "apps/espalier/cpu_load.h"

namespace esp::app {

// What the machine gives at most with as many threads as the case has in all, FLOP/s.
struct Ceilings {
  double ours = 0, openblas = 0, peak = 0;
  std::string openblas_core;
  double best() const;
};

struct Measured {
  TrainRow row;
  double of_sgemm = 0;    // of the ceiling's share that its threads have
  double our_speed = 0;   // the first row's over this one's, round by round, per token; 0 for the first
  double exposed_ms = 0;  // per step, mean over ranks; ours only
  uint64_t pool_bytes = 0;
  double loss = 0;
  std::string about;  // version and BLAS, of a rival
};

struct CaseResult {
  TrainCase it;
  Ceilings ceilings;
  std::vector<Measured> rows;  // ours first
  CpuLoad::Shares disturbed;
};

CaseResult run_case(const TrainBench& bench, const TrainCase& it);

}  // namespace esp::app
