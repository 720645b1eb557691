#include "esp/sync/whole_copies.h"

#include "esp/sync/wire.h"

namespace esp::sync {

using tensor::Tensor;

WholeCopies::WholeCopies(const Setup& setup)
    : setup_(setup),
      parameters_(*setup.parameters),
      ranks_(setup.ranks, {setup.options.deterministic, setup.timeout, setup.trace}),
      wire_(wire_type(setup.options.wire, setup.storage)),
      gradients_(materialize()),
      norm_(parameters_, setup.context, optim::everything(parameters_), {}, setup.storage,
            setup.options.deterministic) {}

Tensor WholeCopies::materialize() {
  parameters_.materialize(setup_.context, setup_.storage, true);
  return Tensor::over(parameters_.units().front().grads.data(), {parameters_.count()}, setup_.storage);
}

void WholeCopies::fill(const std::function<void(nn::ParameterList::Unit&)>& f) {
  for (auto& unit : parameters_.units()) f(unit);
}

std::vector<optim::Held> WholeCopies::held() {
  std::vector<optim::Held> all;
  if (ranks_.rank() == 0)
    for (const optim::Owned& one : owned()) all.push_back({one.range, one.values});
  return all;
}

void WholeCopies::begin_step() {
  ranks_.forget_times();
  parameters_.forget_gradients(setup_.context.stream);
}

}  // namespace esp::sync
