// One case of `bench train`: measures all candidates in turn and returns one row for each.
#pragma once

#include <string>
#include <vector>

#include "apps/espalier/bench_train_candidate.h"
#include "apps/espalier/cpu_load.h"

namespace esp::app {

// Peak rates of the machine in FLOP/s, with as many threads as the case uses in total.
struct Ceilings {
  double ours = 0, openblas = 0, peak = 0;
  std::string openblas_core;
  double best() const;
};

struct Measured {
  TrainRow row;
  double of_sgemm = 0;  // step rate as a fraction of the GEMM rate that the same threads reach
  // Tokens per second relative to the first row, which is Espalier's: median of the ratios of the rounds. 0 for the
  // first row itself.
  double speed_vs_espalier = 0;
  double exposed_ms = 0;  // exposed communication per step, mean over ranks; Espalier only
  uint64_t pool_bytes = 0;
  double loss = 0;
  std::string about;  // versions of a baseline and of its BLAS
};

struct CaseResult {
  TrainCase spec;
  Ceilings ceilings;
  std::vector<Measured> rows;  // the first row is Espalier's
  CpuLoad::Shares disturbed;
};

CaseResult run_case(const TrainBenchOptions& bench, const TrainCase& spec);

}  // namespace esp::app
