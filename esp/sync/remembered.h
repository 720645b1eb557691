// What a rank must have again so that going on equals never having stopped, beside values and the optimizer's state.
#pragma once

#include <string>

#include "esp/tensor/tensor.h"

namespace esp::sync {

// Flat, of any length, and written to when it is restored.
struct Remembered {
  std::string name;
  tensor::Tensor values;
  bool shared = false;           // the same on every rank
  int64_t first = 0, whole = 0;  // whole > 0: the ranks have a vector of so many together, this one from `first` on
};

}  // namespace esp::sync
