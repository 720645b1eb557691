// What ranks tell each other at the end of a step beside its figures, in one word. Pure.
#pragma once

#include <cstdint>

namespace esp::train {

// What is to be saved after a step, beside what fixed intervals of the run file ask for.
enum class PeriodicSave : uint8_t { none, snapshot, checkpoint };

struct StepNotice {
  bool stop = false;                                  // the rank was asked to stop after this step
  PeriodicSave save = PeriodicSave::none;             // the first rank's counts
  double snapshot_cost_s = 0, checkpoint_cost_s = 0;  // of all so far
};

// A whole number below 2^53: costs in milliseconds of 24 bits each, what to save, whether to stop.
double packed(const StepNotice& notice);
StepNotice unpacked(double word);

}  // namespace esp::train
