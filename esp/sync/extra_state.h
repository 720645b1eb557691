// State that a rank needs for a bit-identical resume, in addition to weights and optimizer state (for example error
// feedback).
#pragma once

#include <string>

#include "esp/tensor/tensor.h"

namespace esp::sync {

// One flat tensor of the state, of any length. A restore writes into this tensor.
struct ExtraState {
  std::string name;
  tensor::Tensor values;
  bool shared = false;  // identical on every rank
  // If whole > 0: the tensor is a shard, from element `first`, of a vector of `whole` elements
  int64_t first = 0, whole = 0;
};

}  // namespace esp::sync
