// Keeping a weight's gradient from being called complete: whoever has more to add than the tape knows of holds the
// weight, and the last to let go, tape or holder, is who calls `on_ready`. A pipelined step holds every weight from its
// beginning until the backward of the last micro-batch, whatever the micro-batches in between do; a tied table is held
// on until its copies have been summed. Weights that are not trained are left alone.
#pragma once

#include "esp/autograd/weight.h"
#include "esp/device/stream.h"

namespace esp::parallel {

void hold(autograd::Weight& weight);
void let_go(autograd::Weight& weight, const device::Stream& stream);
void drop_hold(autograd::Weight& weight);  // of a step that failed: tells no one

}  // namespace esp::parallel
