// A dropout site of the model. The site number selects an independent random stream.
#pragma once

#include "esp/autograd/variable.h"
#include "esp/nn/forward_context.h"

namespace esp::nn {

struct DropoutSite {
  double rate = 0;
  uint64_t site = 0;

  double rate_in(const ForwardContext& pass) const { return pass.training ? rate : 0; }
  // x [B, T, ..]. Rows are numbered over the whole batch of the step. Each row therefore gets the same mask, however
  // the batch is partitioned.
  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;
};

}  // namespace esp::nn
