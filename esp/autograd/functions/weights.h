// The weights of a node that are trained, without allocating: what Node::weights returns.
#pragma once

#include <array>
#include <initializer_list>
#include <span>

#include "esp/autograd/weight.h"

namespace esp::autograd {

class TrainedWeights {
 public:
  TrainedWeights(std::initializer_list<Weight*> weights) {
    for (Weight* weight : weights)
      if (weight && weight->grad.defined()) weights_[count_++] = weight;
  }
  std::span<Weight* const> span() const { return {weights_.data(), count_}; }

 private:
  std::array<Weight*, 4> weights_{};
  size_t count_ = 0;
};

}  // namespace esp::autograd
