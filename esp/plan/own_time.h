// Step time of this program's runtime on a calibrated CPU machine: kernels and calls one by one, at measured rates,
// with the ranks sharing the cores.
//
// Kernels of a piece add up; the pipeline, gradient buckets and the sharing of cores use the event simulation: a rank's
// compute is a flow with one core's worth of the machine, or its fair share with more ranks than cores.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/simulate/step.h"

namespace esp::plan {

// Whether `estimate` uses measured figures: software = "espalier" on a calibrated machine.
bool is_own(const Cluster& cluster, const Policy& policy);

StepInput own_step(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
Estimate own_estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy);

}  // namespace esp::plan
