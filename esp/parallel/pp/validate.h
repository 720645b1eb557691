// Whether a schedule can be run, and gives what one process gives.
#pragma once

#include "esp/parallel/pp/schedule.h"

namespace esp::parallel {

// UsageError naming the stage, the place in its list and what is wrong there, unless
//   every F, B and (where backward is split) W of every chunk and micro-batch is there exactly once,
//   B comes after its F, W after its B, and each kind takes a chunk's micro-batches in ascending order, so that
//     gradients add up in the order of one process (some are made in forward),
//   neighbours agree on the order of what passes between them,
//   and nobody waits forever, not even where a channel blocks: where a stage may go on while one message waits to be
//     asked for, but not send a second (steps.h says when it is asked for).
void validate(const Schedule& schedule);

}  // namespace esp::parallel
