// The weights of a node that are trained, without allocating: what Node::weights returns. And how functions add to
// their gradients, of which a stale one is overwritten.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <utility>

#include "esp/autograd/weight.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {

// What a product multiplies the gradient by before it adds.
inline double beta_for(Weight& weight) {
  weight.gradient();  // stale or not is known once it is there
  return std::exchange(weight.stale, false) ? 0 : 1;
}

// For a gradient that is there.
inline void clear_if_stale(Weight& weight, const device::Stream& stream) {
  if (std::exchange(weight.stale, false))
    kernel::fill(weight.grad.data(), 0, weight.grad.count(), weight.grad.dtype(), stream);
}

// Where a kernel that can only add may add; null without a weight.
inline void* gradient_to_add_to(Weight* weight, const device::Stream& stream) {
  if (!weight) return nullptr;
  weight->gradient();
  clear_if_stale(*weight, stream);
  return weight->grad.data();
}

class TrainedWeights {
 public:
  TrainedWeights(std::initializer_list<Weight*> weights) {
    for (Weight* weight : weights)
      if (weight && weight->trained) weights_[count_++] = weight;
  }
  std::span<Weight* const> span() const { return {weights_.data(), count_}; }

 private:
  std::array<Weight*, 4> weights_{};
  size_t count_ = 0;
};

}  // namespace esp::autograd
