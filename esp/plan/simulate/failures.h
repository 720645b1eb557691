// What is left of a run's time when machines fail: checkpoints written, work lost, restarts. By drawing failures, and
// in closed form.
#pragma once

#include <cstdint>

namespace esp::plan {

struct FailureModel {
  double mtbf_s = 0;        // between failures of the whole job: a node's over their number
  double checkpoint_s = 0;  // the job stands while one is written
  double restart_s = 0;     // from a failure until work goes on from the last checkpoint; may fail itself
};

// The interval between checkpoints that loses least: Young's √(2δM), and Daly's higher order.
double young_interval_s(const FailureModel& model);
double daly_interval_s(const FailureModel& model);

// Of all time, the part that is work kept, with checkpoints every `interval_s` of work. Exponential failures, exactly:
// τ / (M e^{R/M} (e^{(τ+δ)/M} − 1)) (Daly 2006).
double expected_goodput(const FailureModel& model, double interval_s);

struct Goodput {
  double fraction = 1;
  double failures = 0;                           // per day
  double checkpoint = 0, lost = 0, restart = 0;  // of all time: where the rest went
};
// Until `work_s` of work are kept. The same for the same seed.
Goodput drawn_goodput(const FailureModel& model, double interval_s, double work_s, uint64_t seed);

}  // namespace esp::plan
