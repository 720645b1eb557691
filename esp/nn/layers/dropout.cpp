#include "esp/nn/layers/dropout.h"

#include "esp/autograd/functions/pointwise.h"

namespace esp::nn {

autograd::Variable DropoutSite::operator()(Pass& pass, const autograd::Variable& x) const {
  const int64_t rows_per_sequence = x.value().rows() / x.value().dim(0);
  return autograd::dropout(*pass.tape, x, rate_in(pass), pass.dropout_key(site),
                           pass.first_sequence * rows_per_sequence);
}

}  // namespace esp::nn
