#include "esp/nn/layers/dropout.h"

#include "esp/nn/parallel_ops.h"

namespace esp::nn {

autograd::Variable DropoutSite::operator()(ForwardContext& pass, const autograd::Variable& x) const {
  return pass.ops->dropout(pass, x, rate_in(pass), pass.dropout_key(site));
}

}  // namespace esp::nn
