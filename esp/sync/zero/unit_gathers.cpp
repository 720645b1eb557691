#include "esp/sync/zero/unit_gathers.h"

namespace esp::sync {

using tensor::Tensor;

PlainGather::PlainGather(TimedCommunicator& ranks, const std::vector<Tensor>& shards)
    : ranks_(ranks), shards_(shards), works_(shards.size()) {}

void PlainGather::start(size_t unit, const Tensor& whole) {
  works_[unit] = ranks_.start_all_gather(shards_[unit], whole);
}

void PlainGather::finish(size_t unit, const Tensor&) {
  ranks_.wait(works_[unit], "values");
}

NodeGather::NodeGather(const NodeGrid& nodes, const tensor::Context& context, const nn::ParameterList& parameters,
                       const std::vector<Tensor>& shards, DType storage, const Options& options)
    : shards_(shards), options_(options), from_node_(shards.size()) {
  for (const auto& unit : parameters.units()) {
    gathers_.emplace_back(nodes, context, unit.count, storage, options.encoding);
    if (options.secondary) secondary_.emplace_back(nodes, context, unit.count, storage);
  }
}

void NodeGather::start(size_t unit, const Tensor& whole) {
  from_node_[unit] = options_.secondary && secondary_[unit].kept();
  if (from_node_[unit]) {
    secondary_[unit].start(whole);
  } else {
    gathers_[unit].start(shards_[unit]);
  }
}

void NodeGather::finish(size_t unit, const Tensor& whole) {
  const Deadline deadline = Deadline::after(options_.timeout);
  if (from_node_[unit]) {
    secondary_[unit].finish(deadline);
    return;
  }
  gathers_[unit].finish(whole, deadline);
  if (options_.secondary) secondary_[unit].keep(whole);
}

void NodeGather::values_changed() {
  for (SecondaryShard& shard : secondary_) shard.forget();
}

double NodeGather::exposed_ms() const {
  double sum = 0;
  for (const QuantisedGather& gather : gathers_) sum += gather.waited_ms();
  for (const SecondaryShard& shard : secondary_) sum += shard.waited_ms();
  return sum;
}

}  // namespace esp::sync
