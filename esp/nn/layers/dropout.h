// A place in the model where activations are dropped. Its number tells its random stream from the other places' ones.
#pragma once

#include "esp/autograd/variable.h"
#include "esp/nn/pass.h"

namespace esp::nn {

struct DropoutSite {
  double rate = 0;
  uint64_t site = 0;

  double rate_in(const Pass& pass) const { return pass.training ? rate : 0; }
  // x [B, T, ..]: rows are numbered over the whole batch of the step, so any split of it draws the same mask.
  autograd::Variable operator()(Pass& pass, const autograd::Variable& x) const;
};

}  // namespace esp::nn
