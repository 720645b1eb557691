// Goodput under failures: checkpoints, lost work, restarts. By simulation with random failures, and in closed form.
#pragma once

#include <cstdint>

namespace esp::plan {

struct FailureModel {
  double mtbf_s = 0;        // of the whole job: a node's over the number of nodes
  double checkpoint_s = 0;  // the job stops during a write
  double restart_s = 0;     // from a failure until work continues from the last checkpoint; may itself fail
};

// The checkpoint interval with the least loss: Young's √(2δM), and Daly's higher order.
double young_interval_s(const FailureModel& model);
double daly_interval_s(const FailureModel& model);

// The fraction of the time that is kept work, with a checkpoint every `interval_s` of work. Exact for exponential
// failures: τ / (M e^{R/M} (e^{(τ+δ)/M} − 1)) (Daly 2006).
double expected_goodput(const FailureModel& model, double interval_s);

struct Goodput {
  double fraction = 1;
  double failures = 0;                           // per day
  double checkpoint = 0, lost = 0, restart = 0;  // fractions of all time
};
// Runs until `work_s` of work are kept. Deterministic for a seed.
Goodput drawn_goodput(const FailureModel& model, double interval_s, double work_s, uint64_t seed);

}  // namespace esp::plan
