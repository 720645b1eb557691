#include "esp/nn/layers/head.h"

#include "esp/kernel/gemm.h"

namespace esp::nn {

Head::Head(ParameterList& list, const std::string& name, int64_t in, int64_t classes, bool bias, Init init,
           Parameter* tied)
    : weight_(tied ? *tied : list.add(name + ".weight", {classes, in}, init, true)) {
  if (bias) bias_ = &list.add(name + ".bias", {classes}, Init::zeros(), false);
}

autograd::Loss Head::loss(Pass& pass, const autograd::Variable& x, const tensor::Tensor& targets, double scale) const {
  return autograd::linear_cross_entropy(*pass.tape, x, weight_.weight, bias_ ? &bias_->weight : nullptr, targets,
                                        scale);
}

tensor::Tensor Head::logits(Pass& pass, const tensor::Tensor& x) const {
  const tensor::Context& context = pass.tape->context();
  const tensor::Tensor w = weight_.weight.used_value();  // held: the bias may be of another unit
  const tensor::Tensor bias = bias_ ? bias_->weight.used_value() : tensor::Tensor();
  tensor::Tensor y =
      tensor::empty(context, x.shape().with_last(w.dim(0)), x.dtype(), device::MemoryCategory::activation);
  kernel::GemmOptions options;
  options.transpose_b = true;
  options.bias = bias.data();
  kernel::gemm(y.data(), x.data(), w.data(), x.rows(), w.dim(0), w.dim(1), options, x.dtype(), context.stream);
  return y;
}

}  // namespace esp::nn
