// A leaf that outlives the tape: value, gradient, and a callback when the gradient is complete. nn::Parameter contains
// one.
//
// `pending` counts the recorded uses whose gradient has not been added yet; the tape maintains it. `on_ready` is called
// on the backward thread, once per backward pass, when it reaches zero.
//
// Value and gradient need not always be in memory: an owner that keeps them elsewhere (shards, offload) sets `on_use`
// and `on_gradient`, called before the value is read and before the gradient is added to. Functions read through
// `used_value` and `gradient`. An embedding may instead call `on_rows`, if set, for the rows of the value it needs: ids
// i32 → [ids.count(), dim]; an undefined result means use the value.
#pragma once

#include <functional>

#include "esp/tensor/tensor.h"

namespace esp::autograd {

struct Weight {
  tensor::Tensor value;
  tensor::Tensor grad;   // gradients are added to it, in the type of value
  bool trained = false;  // whether it has a gradient at all
  // The gradient counts as zero: the first addition overwrites it (functions/weights.h), which saves clearing and
  // rereading a large matrix.
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
