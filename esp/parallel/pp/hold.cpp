#include "esp/parallel/pp/hold.h"

#include "esp/autograd/functions/weights.h"
#include "esp/base/check.h"

namespace esp::parallel {

void hold(autograd::Weight& weight) {
  if (weight.trained) ++weight.pending;
}

void let_go(autograd::Weight& weight, const device::Stream& stream) {
  if (!weight.trained) return;
  ESP_CHECK(weight.pending > 0, "a weight was let go that nobody held");
  if (--weight.pending > 0) return;
  weight.gradient();
  autograd::clear_if_stale(weight, stream);  // nobody had anything to add
  if (weight.on_ready) weight.on_ready();
}

void drop_hold(autograd::Weight& weight) {
  if (weight.trained) --weight.pending;
}

}  // namespace esp::parallel
