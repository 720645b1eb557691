// Goodput of a job with failures, checkpoints, lost work and restarts: by simulation of random failures, and in closed
// form.
#pragma once

#include <cstdint>

namespace esp::plan {

struct FailureModel {
  double mtbf_s = 0;        // mean time between failures of the whole job: a node's MTBF / number of nodes
  double checkpoint_s = 0;  // time of a checkpoint, in which the job does no work
  double restart_s = 0;  // time from a failure until the job continues from the last checkpoint; a restart may fail too
};

// Checkpoint intervals with the least loss: Young's √(2δM), and Daly's higher-order formula. δ: checkpoint_s, M:
// mtbf_s.
double young_interval_s(const FailureModel& model);
double daly_interval_s(const FailureModel& model);

// Fraction of the time that is useful work if a checkpoint follows every `interval_s` seconds of work. Exact for
// exponentially distributed failures: τ / (M e^{R/M} (e^{(τ+δ)/M} − 1)) (Daly 2006), with τ: interval_s, δ:
// checkpoint_s, R: restart_s, M: mtbf_s.
double expected_goodput(const FailureModel& model, double interval_s);

struct Goodput {
  double fraction = 1;
  double failures = 0;  // number of failures per day
  // fraction of the total time spent on checkpoints, lost work and restarts
  double checkpoint = 0, lost = 0, restart = 0;
};
// Simulates the job until it has done `work_s` seconds of useful work. The seed determines the result.
Goodput simulate_goodput(const FailureModel& model, double interval_s, double work_s, uint64_t seed);

}  // namespace esp::plan
