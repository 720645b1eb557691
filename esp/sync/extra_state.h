// State that a rank needs for a bit-identical resume, in addition to weights and optimizer state (for example error
// feedback).
#pragma once

#include <string>

#include "esp/tensor/tensor.h"

namespace esp::sync {

// A flat tensor of any length. A restore writes into it.
struct ExtraState {
  std::string name;
  tensor::Tensor values;
  bool shared = false;           // identical on every rank
  int64_t first = 0, whole = 0;  // whole > 0: a vector of `whole` elements, sharded; this rank holds it from `first` on
};

}  // namespace esp::sync
