// A weight: a leaf that outlives the tape. Has a value, a gradient, and a callback for when the gradient is complete.
// nn::Parameter contains one.
//
// `pending` counts the recorded uses whose gradient has not been added yet; the tape maintains it. When it reaches
// zero, the tape calls `on_ready` on the backward thread, once per backward pass.
//
// Value and gradient need not be in memory all the time. An owner that keeps them elsewhere (shards, offload) sets two
// callbacks: `on_use` runs before the value is read, `on_gradient` before the gradient is added to. Functions must
// therefore read through `fetch_value` and `gradient`. If `on_rows` is set, an embedding can call it instead, to get
// only the rows it needs: ids i32 → [ids.count(), dim]. If the result is undefined, the embedding uses the value.
#pragma once

#include <functional>

#include "esp/tensor/tensor.h"

namespace esp::autograd {

struct Weight {
  tensor::Tensor value;
  tensor::Tensor grad;   // functions add to it; has the same type as value
  bool trained = false;  // the weight has a gradient
  // True: the gradient counts as zero, and the first addition overwrites it (functions/weights.h). This saves one write
  // and one read of a large matrix.
  bool stale = false;
  int pending = 0;
  std::function<void()> on_ready, on_use, on_gradient;
  std::function<tensor::Tensor(const tensor::Tensor& ids)> on_rows;

  const tensor::Tensor& fetch_value() const {
    if (on_use) on_use();
    return value;
  }
  const tensor::Tensor& gradient() const {
    if (on_gradient) on_gradient();
    return grad;
  }

  Weight() = default;
  Weight(const Weight&) = delete;  // tapes keep pointers to it
  Weight& operator=(const Weight&) = delete;
};

}  // namespace esp::autograd
