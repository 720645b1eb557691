#include "esp/sync/replicated_strategy.h"

#include "esp/sync/wire.h"

namespace esp::sync {

using tensor::Tensor;

ReplicatedStrategy::ReplicatedStrategy(const Setup& setup)
    : setup_(setup),
      parameters_(*setup.parameters),
      ranks_(setup.ranks, {setup.options.deterministic, setup.timeout, setup.trace}),
      wire_(wire_type(setup.options.wire, setup.storage)),
      gradients_(materialize()),
      norm_(parameters_, setup.context, optim::all_units(parameters_), {}, setup.storage, setup.options.deterministic) {
}

Tensor ReplicatedStrategy::materialize() {
  parameters_.materialize(setup_.context, setup_.storage, true);
  return Tensor::borrow(parameters_.units().front().grads.data(), {parameters_.count()}, setup_.storage);
}

void ReplicatedStrategy::fill(const std::function<void(nn::ParameterList::Unit&)>& f) {
  for (auto& unit : parameters_.units()) f(unit);
}

std::vector<optim::ValueShard> ReplicatedStrategy::checkpoint_shards() {
  std::vector<optim::ValueShard> all;
  if (ranks_.rank() == 0)
    for (const optim::OptimizerShard& one : optimizer_shards()) all.push_back({one.range, one.values});
  return all;
}

void ReplicatedStrategy::begin_step() {
  ranks_.reset_times();
  parameters_.mark_gradients_stale(setup_.context.stream);
}

}  // namespace esp::sync
