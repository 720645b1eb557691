#include "esp/nn/moe/moe.h"

#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "esp/autograd/functions/pointwise.h"
#include "esp/autograd/functions/routing.h"
#include "esp/device/gpu.h"
#include "esp/nn/moe/routing_report.h"
#include "esp/nn/parallel_ops.h"

namespace esp::nn {

using autograd::Variable;
using device::MemoryCategory;
using tensor::Tensor;

namespace {

MlpOptions shared_options(const MoeOptions& options) {
  MlpOptions mlp = options.expert;
  mlp.ffn = options.shared_ffn;
  return mlp;
}

// Adds the parameters of one expert, with the names and initial values of an Mlp. They are not sharded along the tensor
// axis.
autograd::ExpertWeights add_expert(ParameterList& list, const std::string& name, const MlpOptions& o) {
  const auto add = [&](const char* which, int64_t in, int64_t out, const Init& init, autograd::Weight*& weight,
                       autograd::Weight*& bias) {
    weight = &list.add(name + which + ".weight", {in, out}, init, true).weight;
    if (o.bias) bias = &list.add(name + which + ".bias", {out}, Init::zeros(), false).weight;
  };
  autograd::ExpertWeights w;
  add(o.gated ? ".gate_up" : ".up", o.dim, o.gated ? 2 * o.ffn : o.ffn, o.init, w.up, w.up_bias);
  add(".down", o.ffn, o.dim, o.out_init, w.down, w.down_bias);
  return w;
}

// Returns the expert choices for all tokens of the local sequences, also for tokens on other ranks. The result is
// indexed by sequence, then token.
Tensor gather_sequence_choices(ForwardContext& pass, const TokenDispatcher& dispatcher, const Tensor& choices,
                               const autograd::TokenRows& rows) {
  if (!rows.numbers.defined()) return choices;
  const tensor::Context& context = pass.tape->context();
  const Tensor whole =
      tensor::zeros(context, {rows.sequences * rows.length, choices.dim(-1)}, DType::i32, MemoryCategory::buffer);
  kernel::scatter_choices(whole.as<int32_t>(), choices.as<const int32_t>(), rows.numbers.as<const int32_t>(),
                          choices.rows(), choices.dim(-1), context.stream);
  dispatcher.sum_over_context(pass, whole);
  return whole;
}

// Returns `choices` (of the local tokens) with −1 for every choice that exceeds the capacity of its expert. `whole`
// holds the choices for all tokens of the sequences.
Tensor choices_within_capacity(const tensor::Context& context, const Tensor& whole, const Tensor& choices,
                               const autograd::TokenRows& rows, int64_t num_experts, int64_t capacity) {
  const int64_t k = choices.dim(-1);
  const Tensor all = tensor::empty(context, whole.shape(), DType::i32, MemoryCategory::activation);
  kernel::drop_overflow(all.as<int32_t>(), whole.as<const int32_t>(), rows.sequences, rows.length, k, num_experts,
                        capacity, context.stream);
  if (!rows.numbers.defined()) return all;
  const Tensor here = tensor::empty(context, choices.shape(), DType::i32, MemoryCategory::activation);
  kernel::gather_choices(here.as<int32_t>(), all.as<const int32_t>(), rows.numbers.as<const int32_t>(), choices.rows(),
                         k, context.stream);
  return here;
}

// Counts the choices of each expert; the result is in host memory.
std::vector<int64_t> counts_on_host(const tensor::Context& context, const Tensor& choices, int64_t num_experts) {
  const Tensor counts = tensor::empty(context, {num_experts}, DType::i64, MemoryCategory::buffer);
  kernel::count_choices(counts.as<int64_t>(), choices.as<const int32_t>(), 1, choices.count(), num_experts,
                        context.stream);
  std::vector<int64_t> here(static_cast<size_t>(num_experts));
  device::copy(here.data(), counts.data(), counts.bytes(), context.stream);
  device::finish(context.stream);
  return here;
}

void fill_report(ForwardContext& pass, const MoeOptions& o, const Tensor& choices, const Tensor& kept,
                 const kernel::RouteSums& sums) {
  std::vector<RoutingReport::Layer>& layers = pass.routing->layers;
  if (layers.size() <= static_cast<size_t>(o.layer)) layers.resize(static_cast<size_t>(o.layer) + 1);
  RoutingReport::Layer& layer = layers[static_cast<size_t>(o.layer)];
  const tensor::Context& context = pass.tape->context();
  layer.loads = counts_on_host(context, choices, o.num_experts);
  layer.tokens = choices.rows();
  const std::vector<int64_t> stayed = counts_on_host(context, kept, o.num_experts);
  layer.dropped = kept.count() - std::accumulate(stayed.begin(), stayed.end(), int64_t{0});
  layer.aux = sums.balance;
  layer.z = sums.z;
}

}  // namespace

Moe::Moe(ParameterList& list, ParameterList& experts, const std::string& name, const MoeOptions& options)
    : options_(options),
      router_(list.add(name + ".router.weight", {options.expert.dim, options.num_experts}, options.expert.init, true)),
      local_experts_(experts.shares().experts.of(options.num_experts)) {
  ESP_CHECK(options.num_chosen >= 1 && options.num_chosen <= options.num_experts,
            "num_chosen: got {}; expected 1 to num_experts = {}", options.num_chosen, options.num_experts);
  if (options.shared_ffn > 0) shared_.emplace(list, name + ".shared", shared_options(options));
  experts_.activation = options.expert.activation;
  experts_.gated = options.expert.gated;
  for (int64_t e = local_experts_.begin; e < local_experts_.end; ++e)
    experts_.add(add_expert(experts, fmt::format("{}.experts.{}", name, e), options.expert));
}

int64_t expert_capacity(const MoeOptions& o, int64_t tokens) {
  const double share = static_cast<double>(o.num_chosen * tokens) / static_cast<double>(o.num_experts);
  return o.capacity > 0 ? static_cast<int64_t>(std::ceil(o.capacity * share)) : tokens;
}

Variable Moe::operator()(ForwardContext& pass, const Variable& x) const {
  return run(pass, x, options_.capacity > 0);
}

Variable Moe::extend(ForwardContext& pass, const Variable& x) const {
  return run(pass, x, false);
}

Variable Moe::run(ForwardContext& pass, const Variable& x, bool may_drop) const {
  autograd::Tape& tape = *pass.tape;
  const tensor::Context& context = tape.context();
  const TokenDispatcher& dispatcher = pass.ops->experts();
  const int64_t E = options_.num_experts, k = options_.num_chosen;
  ESP_CHECK(!pass.training || pass.router_scale > 0 || (options_.aux_weight == 0 && options_.z_weight == 0),
            "ForwardContext::router_scale: got {}; expected > 0, because the router losses are scaled by it",
            pass.router_scale);

  const autograd::TokenRows rows = dispatcher.token_rows(pass, x);
  const autograd::RouterOptions router{
      E, k, options_.normalises(), options_.aux_weight, options_.z_weight, pass.router_scale};
  const autograd::RouterOutput routed = autograd::route(tape, x, router_.weight, rows, router);
  const Tensor whole = gather_sequence_choices(pass, dispatcher, routed.choices, rows);
  const Tensor loads = tensor::empty(context, {rows.sequences, E}, DType::i64, MemoryCategory::buffer);
  kernel::count_choices(loads.as<int64_t>(), whole.as<const int32_t>(), rows.sequences, rows.length * k, E,
                        context.stream);
  kernel::RouteSums sums;
  autograd::compute_router_losses(context, routed, rows, loads, router, pass.routing ? &sums : nullptr);

  const Tensor kept = may_drop ? choices_within_capacity(context, whole, routed.choices, rows, E,
                                                         expert_capacity(options_, rows.length))
                               : routed.choices;
  if (pass.routing) fill_report(pass, options_, routed.choices, kept, sums);

  const autograd::ExpertPermutation placement = autograd::sort_rows_by_expert(context, kept, E);
  TokenDispatcher::DispatchedRows dispatched =
      dispatcher.dispatch(pass, autograd::permute_rows(tape, x, placement), placement.counts);
  Variable shared;
  if (shared_) shared = (*shared_)(pass, x);  // the shared expert computes while the rows are in flight
  const Variable arrived = dispatcher.receive(pass, dispatched);
  const bool keep = pass.recompute == RecomputeMode::none;
  const Variable outputs = autograd::expert_rows(tape, arrived, dispatched.counts, experts_, keep);
  const Variable back = dispatcher.combine(pass, dispatched, outputs);
  const Variable y = autograd::unpermute_rows(tape, back, routed.gates, placement, x.shape());
  return shared_ ? autograd::add(tape, y, shared) : y;
}

}  // namespace esp::nn
