// The trained weights of a node, without allocating (for Node::weights), and how functions add to weight gradients. A
// stale gradient is overwritten.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <utility>

#include "esp/autograd/weight.h"
#include "esp/kernel/elementwise.h"

namespace esp::autograd {

// GEMM beta for a weight gradient: 0 if stale, else 1.
inline double beta_for(Weight& weight) {
  weight.gradient();  // materialises it; `stale` is valid afterwards
  return std::exchange(weight.stale, false) ? 0 : 1;
}

// For a materialised gradient.
inline void clear_if_stale(Weight& weight, const device::Stream& stream) {
  if (std::exchange(weight.stale, false))
    kernel::fill(weight.grad.data(), 0, weight.grad.count(), weight.grad.dtype(), stream);
}

// The gradient for kernels that can only add; null without a weight.
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
