// LayerNorm or RMSNorm over the last dimension, and the residual stream it closes.
//
// A sub-layer's output is added to the stream and the next sub-layer begins with a norm of the sum; both are one pass
// over memory when done together. So between sub-layers the stream is carried open, as x and the branch still to be
// added, and the next norm does the addition.
#pragma once

#include <string>

#include "esp/autograd/functions/norm.h"
#include "esp/nn/parameter.h"
#include "esp/nn/pass.h"

namespace esp::nn {

// The value x + branch; an empty branch adds nothing.
struct Stream {
  autograd::Variable x, branch;

  bool closed() const { return !branch.value().defined(); }
};
autograd::Variable close(Pass& pass, const Stream& stream);

struct NormOptions {
  kernel::NormKind kind = kernel::NormKind::layer;
  double eps = 1e-5;
  bool bias = true;  // LayerNorm only
};

class Norm {
 public:
  Norm(ParameterList& list, const std::string& name, int64_t dim, const NormOptions& options);

  autograd::Variable operator()(Pass& pass, const autograd::Variable& x) const;
  autograd::ResidualNorm operator()(Pass& pass, const Stream& stream) const;  // the sum, and its norm

 private:
  NormOptions options_;
  Parameter& gamma_;
  Parameter* beta_ = nullptr;
};

}  // namespace esp::nn
