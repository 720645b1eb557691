// Defers the `on_ready` callback of a weight. A caller uses this if it will add to the gradient outside of the current
// tape. `on_ready` fires when the tape and all these callers have finished. A pipelined step defers every weight until
// the backward of the last micro-batch; a tied table stays deferred until its replicas are summed. Untrained weights
// are ignored.
#pragma once

#include "esp/autograd/weight.h"
#include "esp/device/stream.h"

namespace esp::parallel {

void defer_ready(autograd::Weight& weight);
void resume_ready(autograd::Weight& weight, const device::Stream& stream);
void cancel_deferred_ready(autograd::Weight& weight);  // after a failed step; does not trigger on_ready

}  // namespace esp::parallel
