// Mixture of experts (MoE), which replaces a feed-forward sub-layer. A router sends every token to its `num_chosen`
// most probable of `num_experts` MLPs (top-k routing) and adds their outputs, weighted by the gates (Shazeer et al.
// 2017, Fedus et al. 2022). An optional shared expert processes every token.
//
// Parameters `<name>.router.weight` [dim, E], `<name>.experts.<e>.up` and `.down` as in nn::Mlp, with e over all
// experts of the model, and `<name>.shared`. Only this rank's experts are built. They are in a separate list, because
// the expert axis differs from the tensor axis.
//
// Routing is per sequence. With a capacity factor, an expert takes at most ⌈capacity·k·T/E⌉ rows of a sequence of T
// tokens. Overflowing tokens are dropped: they contribute nothing and pass through the residual. The load-balancing
// loss and the router z-loss are added in backward, multiplied by ForwardContext::router_scale.
#pragma once

#include <optional>

#include "esp/autograd/functions/experts.h"
#include "esp/nn/layers/mlp.h"
#include "esp/nn/moe/token_dispatcher.h"

namespace esp::nn {

struct MoeOptions {
  int64_t num_experts = 0;  // 0: no experts, a plain feed-forward layer
  int64_t num_chosen = 2;
  double capacity = 0;  // capacity factor: maximum rows per expert divided by the mean; 0: no limit, no dropped tokens
  std::optional<bool> normalise;        // true: the gates of the chosen experts sum to 1; unset: true if num_chosen > 1
  double aux_weight = 0, z_weight = 0;  // weights of the load-balancing loss and of the router z-loss
  int64_t shared_ffn = 0;               // inner width of the shared expert; 0: no shared expert
  int layer = 0;                        // this layer's index in ForwardContext::routing
  MlpOptions expert;

  bool normalises() const { return normalise.value_or(num_chosen > 1); }
};

// Maximum number of rows that an expert takes from a sequence of `tokens` tokens; all rows if there is no capacity
// factor.
int64_t expert_capacity(const MoeOptions& options, int64_t tokens);

class Moe {
 public:
  // `experts` receives the parameters of the experts; it may be `list` itself. Its shards determine the local experts.
  Moe(ParameterList& list, ParameterList& experts, const std::string& name, const MoeOptions& options);

  autograd::Variable operator()(ForwardContext& pass, const autograd::Variable& x) const;
  // Incremental decoding. The capacity is not applied, because it depends on later tokens; no token is dropped.
  autograd::Variable extend(ForwardContext& pass, const autograd::Variable& x) const;

 private:
  autograd::Variable run(ForwardContext& pass, const autograd::Variable& x, bool may_drop) const;

  MoeOptions options_;
  Parameter& router_;
  std::optional<Mlp> shared_;
  IndexRange local_experts_;
  autograd::ExpertSet experts_;
};

}  // namespace esp::nn
