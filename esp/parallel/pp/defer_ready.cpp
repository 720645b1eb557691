#include "esp/parallel/pp/defer_ready.h"

#include "esp/autograd/functions/weights.h"
#include "esp/base/check.h"

namespace esp::parallel {

void defer_ready(autograd::Weight& weight) {
  if (weight.trained) ++weight.pending;
}

void resume_ready(autograd::Weight& weight, const device::Stream& stream) {
  if (!weight.trained) return;
  ESP_CHECK(weight.pending > 0, "resume_ready without a matching defer_ready");
  if (--weight.pending > 0) return;
  weight.gradient();
  autograd::clear_if_stale(weight, stream);  // the gradient received no contribution
  if (weight.on_ready) weight.on_ready();
}

void cancel_deferred_ready(autograd::Weight& weight) {
  if (weight.trained) --weight.pending;
}

}  // namespace esp::parallel
