// LayerNorm or RMSNorm over the last dimension, and the residual stream.
//
// The output of a sub-layer is added to the stream, and the next sub-layer starts with a norm of the sum. A fused
// kernel does both in one pass over memory. Therefore, between sub-layers, the stream consists of x and a branch that
// is not added yet (an open stream). The next norm adds the branch.
#pragma once

#include <string>

#include "esp/autograd/functions/norm.h"
#include "esp/nn/forward_context.h"
#include "esp/nn/parameter.h"

namespace esp::nn {

// Represents the value x + branch. If branch is undefined, the value is x.
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
  // adds the open branch; returns the sum and the norm of the sum
  autograd::ResidualNorm operator()(ForwardContext& pass, const ResidualStream& stream) const;

 private:
  NormOptions options_;
  Parameter& gamma_;
  Parameter* beta_ = nullptr;
};

}  // namespace esp::nn
