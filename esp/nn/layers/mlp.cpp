#include "esp/nn/layers/mlp.h"

#include "esp/nn/parallel_ops.h"

namespace esp::nn {

Mlp::Mlp(ParameterList& list, const std::string& name, const MlpOptions& options)
    : options_(options),
      up_(options.gated
              ? Linear::column_parallel(list, name + ".gate_up", options.dim, 2 * options.ffn, options.bias,
                                        options.init, {options.ffn, options.ffn})
              : Linear::column_parallel(list, name + ".up", options.dim, options.ffn, options.bias, options.init)),
      down_(Linear::row_parallel(list, name + ".down", options.ffn, options.dim, options.bias, options.out_init)) {}

autograd::Variable Mlp::operator()(ForwardContext& pass, const autograd::Variable& x) const {
  const MlpWeights weights{up_.weight(), up_.bias(), down_.weight(), down_.bias(), options_.activation, options_.gated};
  return pass.ops->mlp(pass, x, weights, pass.recompute == RecomputeMode::none);
}

}  // namespace esp::nn
