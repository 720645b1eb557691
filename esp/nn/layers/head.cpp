#include "esp/nn/layers/head.h"

#include "esp/nn/parallel_ops.h"

namespace esp::nn {

Head::Head(ParameterList& list, const std::string& name, int64_t in, int64_t classes, bool bias, Init init,
           Parameter* tied, bool divided)
    : weight_(tied ? *tied
                   : list.add(name + ".weight", {classes, in}, init, true,
                              divided ? ShardSpec::along(0) : ShardSpec::none())) {
  if (bias)
    bias_ =
        &list.add(name + ".bias", {classes}, Init::zeros(), false, divided ? ShardSpec::along(0) : ShardSpec::none());
}

autograd::Loss Head::loss(ForwardContext& pass, const autograd::Variable& x, const tensor::Tensor& targets,
                          double scale) const {
  return pass.ops->loss(pass, x, weight_, bias_, targets, scale);
}

tensor::Tensor Head::logits(ForwardContext& pass, const tensor::Tensor& x) const {
  return pass.ops->logits(pass, x, weight_, bias_);
}

}  // namespace esp::nn
