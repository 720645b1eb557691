// Mixture of experts, in place of a feed-forward sub-layer: a router sends every token to its `num_chosen` most
// probable of `num_experts` perceptrons and adds up what they say, weighted (Shazeer et al. 2017, Fedus et al. 2022).
// A shared expert, where there is one, sees every token.
//
// Parameters `<name>.router.weight` [dim, E], `<name>.experts.<e>.up` and `.down` as nn::Mlp names them, e counting all
// experts of the model, and `<name>.shared`. Of the experts only the list's share of them is built, in a list of their
// own, since those who hold an expert are not those who hold the rest.
//
// Tokens are routed together by sequences. With a capacity an expert takes ⌈capacity·k·T/E⌉ rows of a sequence of T;
// what finds it full contributes nothing and the residual carries the token. The losses of the router are added in
// backward, multiplied by Pass::router_scale.
#pragma once

#include <optional>

#include "esp/autograd/functions/experts.h"
#include "esp/nn/layers/mlp.h"
#include "esp/nn/moe/exchange.h"

namespace esp::nn {

struct MoeOptions {
  int64_t num_experts = 0;  // 0: no experts, a plain feed-forward
  int64_t num_chosen = 2;
  double capacity = 0;            // factor over an equal share; 0: nothing is ever dropped
  std::optional<bool> normalise;  // gates over the chosen; unset: where more than one is chosen
  double aux_weight = 0, z_weight = 0;
  int64_t shared_ffn = 0;  // of the shared expert; 0: there is none
  int layer = 0;           // its place in Pass::routing
  MlpOptions expert;

  bool normalises() const { return normalise.value_or(num_chosen > 1); }
};

// Rows that one expert takes of a sequence of so many tokens; where nothing is dropped, all.
int64_t capacity_of(const MoeOptions& options, int64_t tokens);

class Moe {
 public:
  // `experts` is where the experts' parameters go; it may be `list` itself. Its shares say which are held here.
  Moe(ParameterList& list, ParameterList& experts, const std::string& name, const MoeOptions& options);

  autograd::Variable operator()(Pass& pass, const autograd::Variable& x) const;
  // For tokens that follow others: later ones are not known yet, so none is dropped for them.
  autograd::Variable extend(Pass& pass, const autograd::Variable& x) const;

 private:
  autograd::Variable run(Pass& pass, const autograd::Variable& x, bool may_drop) const;

  MoeOptions options_;
  Parameter& router_;
  std::optional<Mlp> shared_;
  Interval held_;
  autograd::ExpertSet experts_;
};

}  // namespace esp::nn
