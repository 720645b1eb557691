#include "esp/sync/local/divergent_strategy.h"

#include <cmath>
#include <deque>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/base/error.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/sync/all_reduce.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr size_t kAhead = 2;  // maximum number of units with an all-reduce in flight

void check(const Setup& setup) {
  const int size = setup.ranks ? setup.ranks->size() : 1;
  if (setup.options.hierarchical && (setup.ranks_per_node < 1 || size % setup.ranks_per_node != 0))
    throw UsageError(
        fmt::format("sync.hierarchical = true: {} replicas cannot be divided equally into nodes of {} replicas. Set "
                    "comm.nodes to the number of nodes.",
                    size, setup.ranks_per_node));
  if (setup.gradients_to_sink || setup.offload)
    throw UsageError(
        fmt::format("sync.method = {}: does not support offload. Set sync.offload = \"none\".", setup.options.method));
}

std::unique_ptr<comm::Communicator> split_node(const Setup& setup, bool within) {
  if (!setup.ranks || !setup.options.hierarchical) return nullptr;
  const int rank = setup.ranks->rank(), node = rank / setup.ranks_per_node, place = rank % setup.ranks_per_node;
  return setup.ranks->split(within ? node : place, rank);
}

Setup checked(const Setup& setup) {
  check(setup);
  check_compression(setup.options);
  return setup;
}

}  // namespace

DivergentStrategy::DivergentStrategy(const Setup& setup)
    : setup_(checked(setup)),
      parameters_(*setup.parameters),
      node_(split_node(setup, true)),
      inter_node_(split_node(setup, false)),
      // The groups across nodes must compute bit-identical results. Therefore they use the deterministic algorithm,
      // which does not depend on measured link speeds.
      peers_(inter_node_ ? inter_node_.get() : setup.ranks,
             {setup.options.deterministic || setup.options.hierarchical, setup.timeout, setup.trace}),
      inner_(make_bucketed(setup)) {
  for (const auto& unit : parameters_.units()) x_.push_back(unit.values);
}

std::vector<NamedGroup> DivergentStrategy::groups() const {
  std::vector<NamedGroup> all;
  if (node_) all.push_back({"node", node_.get()});
  if (inter_node_) all.push_back({"across nodes", inter_node_.get()});
  return all;
}

void DivergentStrategy::attach(optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  for (const optim::OptimizerState& state : optimizer.states())
    if (state.slot == "master") x_[static_cast<size_t>(state.range.unit)] = state.values;
}

comm::Communicator* DivergentStrategy::gradient_group() const {
  return all_reduces_gradients() ? setup_.ranks : node_.get();
}

ReductionScope DivergentStrategy::reduction_scope() const {
  if (all_reduces_gradients()) return {};
  return {false, node_.get()};
}

void DivergentStrategy::begin_step() {
  mean_.clear();
  mean_made_ = false;
  peers_.reset_times();
  exchanging_ms_ = 0;
  inner_->set_communicator(gradient_group());
  if (!all_reduces_gradients()) before_gradients();
  inner_->begin_step();
}

void DivergentStrategy::finish() {
  inner_->finish();
  if (!all_reduces_gradients()) with_gradients();
}

void DivergentStrategy::after_step() {
  if (!all_reduces_gradients()) {
    equal_ = num_replicas() == 1;
    synchronise();
    const int64_t every = setup_.options.consensus_every;
    if (every > 0 && (step_ + 1) % every == 0 && !consensus_) measure_consensus();
  }
  ++step_;
}

void DivergentStrategy::changed(size_t unit) {
  const Tensor& values = parameters_.units()[unit].values;
  if (x_[unit].data() == values.data()) return;
  kernel::cast(values.data(), values.dtype(), x_[unit].data(), x_[unit].dtype(), values.count(), setup_.context.stream);
}

Tensor DivergentStrategy::gradients() const {
  return Tensor::borrow(parameters_.units().front().grads.data(), {parameters_.count()}, setup_.storage);
}

Tensor DivergentStrategy::scratch(const Tensor& like) const {
  return tensor::empty(setup_.context, like.shape(), like.dtype(), device::MemoryCategory::buffer);
}

void DivergentStrategy::sum_units(const PutUnit& put, const PutUnit& f) {
  struct PendingSum {
    size_t unit;
    Tensor sum;
    Work work;
  };
  std::deque<PendingSum> pending;
  const auto finish_oldest = [&] {
    peers_.wait(pending.front().work, "average");
    f(pending.front().unit, pending.front().sum);
    pending.pop_front();
  };
  for (size_t unit = 0; unit < x_.size(); ++unit) {
    if (pending.size() == kAhead) finish_oldest();
    Tensor sum = scratch(x_[unit]);
    put(unit, sum);
    Work work = peers_.start_all_reduce(sum);
    pending.push_back({unit, std::move(sum), std::move(work)});
  }
  while (!pending.empty()) finish_oldest();
}

double DivergentStrategy::mean_of(double value) {
  peers_.wait(peers_.start_all_reduce(Tensor::borrow(&value, {1}, DType::f64)), "average");
  return value / num_replicas();
}

// Sums the contributions of all replicas, scales by `factor` and stores the result in x.
void DivergentStrategy::apply_average(const PutUnit& put, double factor) {
  if (num_replicas() == 1) return;
  double apart = 0;
  sum_units(put, [&](size_t unit, const Tensor& sum) {
    if (factor != 1) kernel::scale(sum.data(), factor, sum.count(), sum.dtype(), setup_.context.stream);
    apart += take_mean(unit, sum);
  });
  consensus_ = mean_of(apart);
  equal_ = true;
}

double DivergentStrategy::take_mean(size_t unit, const Tensor& mean) {
  const device::Stream& stream = setup_.context.stream;
  const Tensor& x = x_[unit];
  const kernel::WeightedTerm difference[] = {{x.data(), 1}, {mean.data(), -1}};
  kernel::weighted_sum(x.data(), difference, x.count(), x.dtype(), stream);
  const double apart = kernel::sum_of_squares(x.data(), x.count(), x.dtype(), stream);
  kernel::cast(x.data(), x.dtype(), mean.data(), mean.dtype(), x.count(), stream);
  changed(unit);
  return apart;
}

void DivergentStrategy::take_means(const PutUnit& make) {
  double apart = 0;
  for (size_t unit = 0; unit < x_.size(); ++unit) {
    const Tensor mean = scratch(x_[unit]);
    make(unit, mean);
    apart += take_mean(unit, mean);
  }
  consensus_ = mean_of(apart);
  equal_ = true;
}

std::optional<StrategyCompression> DivergentStrategy::compression() {
  if (setup_.options.compress == "none") return {};
  Setup setup = setup_;
  // The groups across nodes must compute bit-identical results, so the algorithm must not depend on measured link
  // speeds.
  setup.options.deterministic = setup.options.deterministic || setup.options.hierarchical;
  return std::optional<StrategyCompression>(std::in_place, setup);
}

void DivergentStrategy::average() {
  apply_average(
      [this](size_t unit, const Tensor& sum) {
        kernel::cast(sum.data(), sum.dtype(), x_[unit].data(), x_[unit].dtype(), sum.count(), setup_.context.stream);
      },
      1.0 / num_replicas());
}

void DivergentStrategy::average(double weight) {
  apply_average(
      [&](size_t unit, const Tensor& sum) {
        const kernel::WeightedTerm mine[] = {{x_[unit].data(), weight}};
        // With weight 0, x is not read: it may contain non-finite values, and 0·NaN is NaN.
        if (weight == 0)
          kernel::fill(sum.data(), 0, sum.count(), sum.dtype(), setup_.context.stream);
        else
          kernel::weighted_sum(sum.data(), mine, sum.count(), sum.dtype(), setup_.context.stream);
      },
      1);
}

void DivergentStrategy::average_states() {
  ESP_CHECK(optimizer_, "average_states: no optimizer is attached. Call attach first");
  if (num_replicas() == 1) return;
  for (const optim::OptimizerState& state : optimizer_->states()) {
    if (state.slot == "master") continue;
    peers_.wait(peers_.start_all_reduce(state.values), "average");
    kernel::scale(state.values.data(), 1.0 / num_replicas(), state.values.count(), state.values.dtype(),
                  setup_.context.stream);
  }
}

void DivergentStrategy::measure_consensus() {
  if (equal_) {
    consensus_ = 0;
    return;
  }
  load_average();
  restore_own();
}

// Writes the mean of x to the weights. The weights are saved first; where x aliases them, x is saved with them.
void DivergentStrategy::load_average() {
  ESP_CHECK(own_.empty(), "load_average was called twice without restore_own");
  if (equal_ || num_replicas() == 1) return;
  const device::Stream& stream = setup_.context.stream;
  double apart = 0;
  sum_units(
      [&](size_t unit, const Tensor& sum) {
        kernel::cast(sum.data(), sum.dtype(), x_[unit].data(), x_[unit].dtype(), sum.count(), stream);
      },
      [&](size_t unit, const Tensor& sum) {
        const Tensor& values = parameters_.units()[unit].values;
        own_.push_back(tensor::copy_of(setup_.context, values, device::MemoryCategory::buffer));
        kernel::scale(sum.data(), 1.0 / num_replicas(), sum.count(), sum.dtype(), stream);
        const Tensor difference = scratch(sum);
        const kernel::WeightedTerm terms[] = {{x_[unit].data(), 1}, {sum.data(), -1}};
        kernel::weighted_sum(difference.data(), terms, sum.count(), sum.dtype(), stream);
        apart += kernel::sum_of_squares(difference.data(), sum.count(), sum.dtype(), stream);
        kernel::cast(values.data(), values.dtype(), sum.data(), sum.dtype(), sum.count(), stream);
      });
  consensus_ = mean_of(apart);
}

void DivergentStrategy::restore_own() {
  for (size_t unit = 0; unit < own_.size(); ++unit) {
    const Tensor& values = parameters_.units()[unit].values;
    kernel::cast(values.data(), values.dtype(), own_[unit].data(), own_[unit].dtype(), values.count(),
                 setup_.context.stream);
  }
  own_.clear();
}

std::vector<optim::ValueShard> DivergentStrategy::checkpoint_shards() {
  const bool first = !setup_.ranks || setup_.ranks->rank() == 0;
  const bool whole = equal_ || num_replicas() == 1;
  if (!whole && !std::exchange(mean_made_, true)) {
    load_average();
    if (first)
      for (const auto& unit : parameters_.units())
        mean_.push_back(tensor::copy_of(setup_.context, unit.values, device::MemoryCategory::buffer));
    restore_own();
  }
  std::vector<optim::ValueShard> all;
  if (!first) return all;
  for (const optim::OptimizerShard& one : optimizer_shards())
    all.push_back({one.range, whole ? one.values : mean_[static_cast<size_t>(one.range.unit)]});
  return all;
}

std::vector<ExtraState> DivergentStrategy::extra_state() {
  if (equal_) return {};
  return {{"values", Tensor::borrow(parameters_.units().front().values.data(), {parameters_.count()}, setup_.storage)}};
}

std::vector<ReplicaMetric> DivergentStrategy::take_metrics() {
  std::vector<ReplicaMetric> all;
  if (const auto taken = std::exchange(consensus_, std::nullopt)) all.push_back({"consensus", *taken});
  return all;
}

void DivergentStrategy::begin_at(int64_t step) {
  step_ = step;
  equal_ = true;
}

void DivergentStrategy::resume_at(int64_t step, bool equal) {
  step_ = step;
  equal_ = equal;
}

}  // namespace esp::sync
