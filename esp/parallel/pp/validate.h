// Validation of pipeline schedules.
#pragma once

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

// UsageError naming the stage, the position in its list and the fault, unless
//   every F, B and (with a split backward) W of every chunk and micro-batch occurs exactly once,
//   B follows its F, W follows its B, and each kind takes a chunk's micro-batches in ascending order, so that
//     gradients add up in the order of a single process (some are computed in forward),
//   neighbours agree on the order of their messages,
//   and there is no deadlock, even with blocking channels: a stage may continue while one message is unreceived,
//     but may not send a second (steps.h defines when a message is received).
void validate(const PipelineSchedule& schedule);

}  // namespace esp::parallel
