// A step of this program's own runtime on a CPU machine that was calibrated: its kernels and calls one by one, at the
// rates measured, with the ranks sharing the cores there are.
//
// Kernels of a piece add up; the pipeline, gradient buckets and the sharing of cores go through the event simulation:
// a rank's compute is a flow that takes one core's worth of the machine, or its fair part when there are more ranks
// than cores.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/simulate/step.h"

namespace esp::plan {

// Whether `estimate` answers from measured figures: software = "espalier" on a calibrated machine.
bool is_own(const Cluster& cluster, const Policy& policy);

StepInput own_step(const Shape& shape, const Cluster& cluster, const Policy& policy);
Estimate own_estimate(const Shape& shape, const Cluster& cluster, const Policy& policy);

}  // namespace esp::plan
