// A leaf that outlives the tape: value, gradient, and word when the gradient is complete. What nn::Parameter is made
// of.
//
// `pending` counts the recorded uses whose gradient has not been added yet; the tape keeps it. `on_ready` is called on
// the thread that runs backward, once per backward pass, when it falls to zero: the one callback that climbs.
#pragma once

#include <functional>

#include "esp/tensor/tensor.h"

namespace esp::autograd {

struct Weight {
  tensor::Tensor value;
  tensor::Tensor grad;  // undefined: not trained; gradients are added to it, in the type of value
  // The gradient counts as zero whatever its memory holds: the first to add overwrites (functions/weights.h), which
  // spares a large matrix being cleared and read again.
  bool stale = false;
  int pending = 0;
  std::function<void()> on_ready;

  Weight() = default;
  Weight(const Weight&) = delete;  // tapes point at it
  Weight& operator=(const Weight&) = delete;
};

}  // namespace esp::autograd
