// Validation of pipeline schedules.
#pragma once

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

// Throws a UsageError that names the stage, the position in its list and the fault, unless all of these rules hold:
// - Every F, B and (with a split backward) W of every chunk and micro-batch occurs exactly once.
// - B follows its F, and W follows its B. The F, B and W actions of a chunk each run in ascending micro-batch order, so
//   that gradients are summed in the order of a single process (some gradients are computed in forward).
// - Neighbouring stages send and receive messages in the same order.
// - There is no deadlock, even if a send blocks: a stage may continue while one of its messages is unreceived, but may
//   not send a second one on the same channel (steps.h defines when a message is received).
void validate(const PipelineSchedule& schedule);

}  // namespace esp::parallel
