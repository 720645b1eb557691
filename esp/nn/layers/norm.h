// LayerNorm or RMSNorm over the last dimension, and the residual stream.
//
// A sub-layer's output is added to the stream, and the next sub-layer starts with a norm of the sum; fused, both take
// one pass over memory. So between sub-layers the stream stays open: x and the branch still to be added. The next norm
// does the addition.
#pragma once

#include <string>

#include "esp/autograd/functions/norm.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

// The value x + branch; an empty branch adds nothing.
struct ResidualStream {
  autograd::Variable x, branch;

  bool closed() const { return !branch.value().defined(); }
};
autograd::Variable close(ForwardContext& pass, const ResidualStream& stream);

struct NormOptions {
  kernel::NormKind kind = kernel::NormKind::layer;
  double eps = 1e-5;
  bool bias = true;  // LayerNorm only
};

class Norm {
 public:
  Norm(ParameterList& list, const std::string& name, int64_t dim, const NormOptions& options);

  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;
  autograd::ResidualNorm operator()(ForwardContext& pass, const ResidualStream& stream) const;  // the sum, and its norm

 private:
  NormOptions options_;
  Parameter& gamma_;
  Parameter* beta_ = nullptr;
};

}  // namespace esp::nn
