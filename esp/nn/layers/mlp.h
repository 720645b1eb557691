// Feed-forward sub-layer (MLP): act(x·W1 + b1)·W2 + b2, or a gated MLP, (silu(x·Wg) ∘ x·Wu)·W2 (SwiGLU, Shazeer 2020).
//
// Parameters `<name>.up` [dim, ffn] and `<name>.down` [ffn, dim]. A gated MLP has `<name>.gate_up` [dim, 2·ffn], laid
// out [gate | up], instead of `.up`. Selective recomputation recomputes the activation's output instead of storing it.
#pragma once

#include "esp/kernel/activation.h"
#include "esp/nn/layers/linear.h"

namespace esp::nn {

struct MlpOptions {
  int64_t dim = 0, ffn = 0;
  kernel::Activation activation = kernel::Activation::gelu;
  bool gated = false, bias = true;
  Init init, out_init;
};

class Mlp {
 public:
  Mlp(ParameterList& list, const std::string& name, const MlpOptions& options);

  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;

 private:
  MlpOptions options_;
  Linear up_, down_;  // up_: column parallel (sharded by outputs); down_: row parallel (sharded by inputs)
};

}  // namespace esp::nn
