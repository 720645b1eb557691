// A leaf that outlives the tape: value, gradient, and word when the gradient is complete. What nn::Parameter is made
// of.
//
// `pending` counts the recorded uses whose gradient has not been added yet; the tape keeps it. `on_ready` is called on
// the thread that runs backward, once per backward pass, when it falls to zero: the one callback that climbs.
//
// Neither value nor gradient need be there all the time: whoever keeps them elsewhere (shards, other memory) sets
// `on_use` and `on_gradient`, which are called before the value is read and before the gradient is added to, and must
// leave it in place. Functions read through `used_value` and `gradient`. A look-up may ask `on_rows`, where set, for
// the rows of the value it needs instead: ids i32 → [ids.count(), dim]; an undefined answer says to use the value.
#pragma once

#include <functional>

#include "esp/tensor/tensor.h"

namespace esp::autograd {

struct Weight {
  tensor::Tensor value;
  tensor::Tensor grad;   // gradients are added to it, in the type of value
  bool trained = false;  // whether it has a gradient at all
  // The gradient counts as zero whatever its memory holds: the first to add overwrites (functions/weights.h), which
  // spares a large matrix being cleared and read again.
  bool stale = false;
  int pending = 0;
  std::function<void()> on_ready, on_use, on_gradient;
  std::function<tensor::Tensor(const tensor::Tensor& ids)> on_rows;

  const tensor::Tensor& used_value() const {
    if (on_use) on_use();
    return value;
  }
  const tensor::Tensor& gradient() const {
    if (on_gradient) on_gradient();
    return grad;
  }

  Weight() = default;
  Weight(const Weight&) = delete;  // tapes point at it
  Weight& operator=(const Weight&) = delete;
};

}  // namespace esp::autograd
