// Helpers for tape nodes with weights: the list of trained weights that Node::weights returns (without allocation), and
// functions that add to weight gradients. The first addition to a stale gradient overwrites it.
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
  weight.gradient();  // materialises the gradient; `stale` is valid only afterwards
  return std::exchange(weight.stale, false) ? 0 : 1;
}

// Sets a stale gradient to zero. The gradient must be materialised.
inline void clear_if_stale(Weight& weight, const device::Stream& stream) {
  if (std::exchange(weight.stale, false))
    kernel::fill(weight.grad.data(), 0, weight.grad.count(), weight.grad.dtype(), stream);
}

// Returns a pointer to the gradient, for kernels that always add to their output. A stale gradient is set to zero
// first. Null if there is no weight.
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
