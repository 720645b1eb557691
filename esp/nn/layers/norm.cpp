#include "esp/nn/layers/norm.h"

#include "esp/autograd/functions/pointwise.h"

namespace esp::nn {

using autograd::Variable;

Variable close(ForwardContext& pass, const ResidualStream& stream) {
  return stream.closed() ? stream.x : autograd::add(*pass.tape, stream.x, stream.branch);
}

Norm::Norm(ParameterList& list, const std::string& name, int64_t dim, const NormOptions& options)
    : options_(options), gamma_(list.add(name + ".weight", {dim}, Init::ones(), false)) {
  if (options.kind == kernel::NormKind::layer && options.bias)
    beta_ = &list.add(name + ".bias", {dim}, Init::zeros(), false);
}

Variable Norm::operator()(ForwardContext& pass, const Variable& x) const {
  return autograd::norm(*pass.tape, x, gamma_.weight, beta_ ? &beta_->weight : nullptr, options_.kind, options_.eps);
}

autograd::ResidualNorm Norm::operator()(ForwardContext& pass, const ResidualStream& stream) const {
  if (stream.closed()) return {stream.x, (*this)(pass, stream.x)};
  return autograd::residual_norm(*pass.tape, stream.x, stream.branch, gamma_.weight, beta_ ? &beta_->weight : nullptr,
                                 options_.kind, options_.eps);
}

}  // namespace esp::nn
