#include "esp/nn/layers/mlp.h"

#include "esp/nn/regions.h"

namespace esp::nn {

Mlp::Mlp(ParameterList& list, const std::string& name, const MlpOptions& options)
    : options_(options),
      up_(options.gated ? Linear::by_columns(list, name + ".gate_up", options.dim, 2 * options.ffn, options.bias,
                                             options.init, {options.ffn, options.ffn})
                        : Linear::by_columns(list, name + ".up", options.dim, options.ffn, options.bias, options.init)),
      down_(Linear::by_rows(list, name + ".down", options.ffn, options.dim, options.bias, options.out_init)) {}

autograd::Variable Mlp::operator()(Pass& pass, const autograd::Variable& x) const {
  const PerceptronWeights weights{up_.weight(), up_.bias(),          down_.weight(),
                                  down_.bias(), options_.activation, options_.gated};
  return pass.regions->perceptron(pass, x, weights, pass.recompute == Recompute::none);
}

}  // namespace esp::nn
