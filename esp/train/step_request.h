// StepRequest: what a rank requests at the end of a step, and its costs of saving. Ranks exchange it packed into one
// double. Pure.
#pragma once

#include <cstdint>

namespace esp::train {

// What to save after a step, in addition to the fixed intervals of the run file.
enum class PeriodicSave : uint8_t { none, snapshot, checkpoint };

struct StepRequest {
  bool stop = false;                                  // this rank requests that the run stops after the step
  PeriodicSave save = PeriodicSave::none;             // what to save; only rank 0's value counts
  double snapshot_cost_s = 0, checkpoint_cost_s = 0;  // total cost of all saves so far, in seconds
};

// Packs a request into an integer below 2^53: the costs in milliseconds (24 bits each), what to save, the stop flag.
double pack(const StepRequest& request);
StepRequest unpack(double word);

}  // namespace esp::train
