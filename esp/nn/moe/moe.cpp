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

// As Mlp names and begins them. Experts are not divided along the tensor axis.
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

// The choices of whole sequences, from all ranks that hold some of their tokens.
Tensor together(ForwardContext& pass, const TokenDispatcher& dispatcher, const Tensor& choices,
                const autograd::TokenRows& rows) {
  if (!rows.numbers.defined()) return choices;
  const tensor::Context& context = pass.tape->context();
  const Tensor whole =
      tensor::zeros(context, {rows.sequences * rows.length, choices.dim(-1)}, DType::i32, MemoryCategory::buffer);
  kernel::put_choices(whole.as<int32_t>(), choices.as<const int32_t>(), rows.numbers.as<const int32_t>(),
                      choices.rows(), choices.dim(-1), context.stream);
  dispatcher.sum_over_context(pass, whole);
  return whole;
}

// The choices within capacity; −1 for the others.
Tensor within(const tensor::Context& context, const Tensor& whole, const Tensor& choices,
              const autograd::TokenRows& rows, int64_t num_experts, int64_t capacity) {
  const int64_t k = choices.dim(-1);
  const Tensor all = tensor::empty(context, whole.shape(), DType::i32, MemoryCategory::activation);
  kernel::drop_overflow(all.as<int32_t>(), whole.as<const int32_t>(), rows.sequences, rows.length, k, num_experts,
                        capacity, context.stream);
  if (!rows.numbers.defined()) return all;
  const Tensor here = tensor::empty(context, choices.shape(), DType::i32, MemoryCategory::activation);
  kernel::pick_choices(here.as<int32_t>(), all.as<const int32_t>(), rows.numbers.as<const int32_t>(), choices.rows(), k,
                       context.stream);
  return here;
}

// Number of choices per expert, on the host.
std::vector<int64_t> counted(const tensor::Context& context, const Tensor& choices, int64_t num_experts) {
  const Tensor counts = tensor::empty(context, {num_experts}, DType::i64, MemoryCategory::buffer);
  kernel::count_choices(counts.as<int64_t>(), choices.as<const int32_t>(), 1, choices.count(), num_experts,
                        context.stream);
  std::vector<int64_t> here(static_cast<size_t>(num_experts));
  device::copy(here.data(), counts.data(), counts.bytes(), context.stream);
  device::finish(context.stream);
  return here;
}

void note(ForwardContext& pass, const MoeOptions& o, const Tensor& choices, const Tensor& kept,
          const kernel::RouteSums& sums) {
  std::vector<RoutingReport::Layer>& layers = pass.routing->layers;
  if (layers.size() <= static_cast<size_t>(o.layer)) layers.resize(static_cast<size_t>(o.layer) + 1);
  RoutingReport::Layer& layer = layers[static_cast<size_t>(o.layer)];
  const tensor::Context& context = pass.tape->context();
  layer.loads = counted(context, choices, o.num_experts);
  layer.tokens = choices.rows();
  const std::vector<int64_t> stayed = counted(context, kept, o.num_experts);
  layer.dropped = kept.count() - std::accumulate(stayed.begin(), stayed.end(), int64_t{0});
  layer.aux = sums.balance;
  layer.z = sums.z;
}

}  // namespace

Moe::Moe(ParameterList& list, ParameterList& experts, const std::string& name, const MoeOptions& options)
    : options_(options),
      router_(list.add(name + ".router.weight", {options.expert.dim, options.num_experts}, options.expert.init, true)),
      held_(experts.shares().experts.of(options.num_experts)) {
  ESP_CHECK(options.num_chosen >= 1 && options.num_chosen <= options.num_experts, "{} of {} experts",
            options.num_chosen, options.num_experts);
  if (options.shared_ffn > 0) shared_.emplace(list, name + ".shared", shared_options(options));
  experts_.activation = options.expert.activation;
  experts_.gated = options.expert.gated;
  for (int64_t e = held_.begin; e < held_.end; ++e)
    experts_.add(add_expert(experts, fmt::format("{}.experts.{}", name, e), options.expert));
}

int64_t capacity_of(const MoeOptions& o, int64_t tokens) {
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
            "losses of the router without a scale");

  const autograd::TokenRows rows = dispatcher.token_rows(pass, x);
  const autograd::RouterOptions router{
      E, k, options_.normalises(), options_.aux_weight, options_.z_weight, pass.router_scale};
  const autograd::Routed routed = autograd::route(tape, x, router_.weight, rows, router);
  const Tensor whole = together(pass, dispatcher, routed.choices, rows);
  const Tensor loads = tensor::empty(context, {rows.sequences, E}, DType::i64, MemoryCategory::buffer);
  kernel::count_choices(loads.as<int64_t>(), whole.as<const int32_t>(), rows.sequences, rows.length * k, E,
                        context.stream);
  kernel::RouteSums sums;
  autograd::balance(context, routed, rows, loads, router, pass.routing ? &sums : nullptr);

  const Tensor kept =
      may_drop ? within(context, whole, routed.choices, rows, E, capacity_of(options_, rows.length)) : routed.choices;
  if (pass.routing) note(pass, options_, routed.choices, kept, sums);

  const autograd::RowPlacement placement = autograd::place_rows(context, kept, E);
  TokenDispatcher::DispatchedRows dispatched =
      dispatcher.dispatch(pass, autograd::take_rows(tape, x, placement), placement.counts);
  Variable shared;
  if (shared_) shared = (*shared_)(pass, x);  // while the rows travel
  const Variable arrived = dispatcher.receive(pass, dispatched);
  const bool keep = pass.recompute == RecomputeMode::none;
  const Variable said = autograd::expert_rows(tape, arrived, dispatched.counts, experts_, keep);
  const Variable back = dispatcher.combine(pass, dispatched, said);
  const Variable y = autograd::combine_rows(tape, back, routed.gates, placement, x.shape());
  return shared_ ? autograd::add(tape, y, shared) : y;
}

}  // namespace esp::nn
