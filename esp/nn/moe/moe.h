// Mixture of experts (MoE) in place of a feed-forward sub-layer: a router sends every token to its `num_chosen` most
// probable of `num_experts` MLPs and adds their weighted outputs (Shazeer et al. 2017, Fedus et al. 2022). An optional
// shared expert processes every token.
//
// Parameters `<name>.router.weight` [dim, E], `<name>.experts.<e>.up` and `.down` as in nn::Mlp, with e over all
// experts of the model, and `<name>.shared`. Only this rank's experts are built, in a separate list, because the expert
// axis differs from the tensor axis.
//
// Routing is per sequence. With a capacity, an expert takes ⌈capacity·k·T/E⌉ rows of a sequence of T tokens;
// overflowing tokens contribute nothing and pass through the residual. The router's losses are added in backward,
// multiplied by ForwardContext::router_scale.
#pragma once

#include <optional>

#include "esp/autograd/functions/experts.h"
#include "esp/nn/layers/mlp.h"
#include "esp/nn/moe/token_dispatcher.h"

namespace esp::nn {

struct MoeOptions {
  int64_t num_experts = 0;  // 0: no experts, a plain feed-forward
  int64_t num_chosen = 2;
  double capacity = 0;            // factor over an equal share; 0: no token is dropped
  std::optional<bool> normalise;  // normalise gates over the chosen experts; unset: if num_chosen > 1
  double aux_weight = 0, z_weight = 0;
  int64_t shared_ffn = 0;  // of the shared expert; 0: none
  int layer = 0;           // index in ForwardContext::routing
  MlpOptions expert;

  bool normalises() const { return normalise.value_or(num_chosen > 1); }
};

// Rows an expert takes from a sequence of `tokens` tokens; without a capacity, all.
int64_t capacity_of(const MoeOptions& options, int64_t tokens);

class Moe {
 public:
  // `experts` receives the experts' parameters; it may be `list` itself. Its shards select the local experts.
  Moe(ParameterList& list, ParameterList& experts, const std::string& name, const MoeOptions& options);

  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;
  // Incremental decoding: no token is dropped, because later tokens are unknown.
  autograd::Variable extend(ForwardContext& pass, const autograd::Variable& x) const;

 private:
  autograd::Variable run(ForwardContext& pass, const autograd::Variable& x, bool may_drop) const;

  MoeOptions options_;
  Parameter& router_;
  std::optional<Mlp> shared_;
  IndexRange held_;
  autograd::ExpertSet experts_;
};

}  // namespace esp::nn
