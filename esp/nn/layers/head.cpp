#include "esp/nn/layers/head.h"

#include "esp/nn/regions.h"

namespace esp::nn {

Head::Head(ParameterList& list, const std::string& name, int64_t in, int64_t classes, bool bias, Init init,
           Parameter* tied, bool divided)
    : weight_(tied ? *tied
                   : list.add(name + ".weight", {classes, in}, init, true, divided ? Cut::along(0) : Cut::none())) {
  if (bias) bias_ = &list.add(name + ".bias", {classes}, Init::zeros(), false, divided ? Cut::along(0) : Cut::none());
}

autograd::Loss Head::loss(Pass& pass, const autograd::Variable& x, const tensor::Tensor& targets, double scale) const {
  return pass.regions->loss(pass, x, weight_, bias_, targets, scale);
}

tensor::Tensor Head::logits(Pass& pass, const tensor::Tensor& x) const {
  return pass.regions->logits(pass, x, weight_, bias_);
}

}  // namespace esp::nn
