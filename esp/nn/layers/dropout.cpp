#include "esp/nn/layers/dropout.h"

#include "esp/nn/regions.h"

namespace esp::nn {

autograd::Variable DropoutSite::operator()(Pass& pass, const autograd::Variable& x) const {
  return pass.regions->dropout(pass, x, rate_in(pass), pass.dropout_key(site));
}

}  // namespace esp::nn
