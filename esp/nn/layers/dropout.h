// A dropout site of the model. Its number selects its own random stream.
#pragma once

#include "esp/autograd/variable.h"
#include "esp/nn/forward_context.h"

namespace esp::nn {

struct DropoutSite {
  double rate = 0;
  uint64_t site = 0;

  double rate_in(const ForwardContext& pass) const { return pass.training ? rate : 0; }
  // x [B, T, ..]: rows are numbered over the whole batch of the step, so any partition of the batch draws the same
  // mask.
  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;
};

}  // namespace esp::nn
