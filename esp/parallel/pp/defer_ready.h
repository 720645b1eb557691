// Defers a weight's `on_ready`: an owner that will add more to the gradient than the tape knows defers the weight, and
// the last of tape and owners to finish triggers `on_ready`. A pipelined step defers every weight until the backward of
// the last micro-batch; a tied table stays deferred until its replicas are summed. Untrained weights are ignored.
#pragma once

#include "esp/autograd/weight.h"
#include "esp/device/stream.h"

namespace esp::parallel {

void defer_ready(autograd::Weight& weight);
void resume_ready(autograd::Weight& weight, const device::Stream& stream);
void cancel_deferred_ready(autograd::Weight& weight);  // after a failed step; does not trigger on_ready

}  // namespace esp::parallel
