// Step time of Espalier's own runs on a calibrated CPU machine. Each kernel and each collective call is timed at its
// measured rate. All ranks share the cores of the machine.
//
// The kernel times of a pipeline piece are added up. The event simulation then computes the pipeline, the gradient
// buckets and the sharing of cores. A rank's compute is a flow: it uses one core per thread, or its fair share if there
// are more threads than cores.
#pragma once

#include "esp/plan/estimate.h"
#include "esp/plan/simulate/step.h"

namespace esp::plan {

// Whether estimate() uses measured rates: software = "espalier" on a calibrated machine.
bool uses_calibrated_rates(const Cluster& cluster, const Policy& policy);

StepInput espalier_step_input(const ModelShape& shape, const Cluster& cluster, const Policy& policy);
Estimate espalier_estimate(const ModelShape& shape, const Cluster& cluster, const Policy& policy);

}  // namespace esp::plan
