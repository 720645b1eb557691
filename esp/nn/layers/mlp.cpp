#include "esp/nn/layers/mlp.h"

#include "esp/autograd/functions/linear.h"

namespace esp::nn {

Mlp::Mlp(ParameterList& list, const std::string& name, const MlpOptions& options)
    : options_(options),
      up_(list, name + (options.gated ? ".gate_up" : ".up"), options.dim, options.gated ? 2 * options.ffn : options.ffn,
          options.bias, options.init),
      down_(list, name + ".down", options.ffn, options.dim, options.bias, options.out_init) {}

autograd::Variable Mlp::operator()(Pass& pass, const autograd::Variable& x) const {
  const bool keep = pass.recompute == Recompute::none;
  if (options_.gated)
    return autograd::gated_perceptron(*pass.tape, x, up_.weight(), up_.bias(), down_.weight(), down_.bias(), keep);
  return autograd::perceptron(*pass.tape, x, up_.weight(), up_.bias(), options_.activation, down_.weight(),
                              down_.bias(), keep);
}

}  // namespace esp::nn
