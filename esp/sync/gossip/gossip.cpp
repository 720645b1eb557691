#include "esp/sync/gossip/gossip.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/sync/gossip/move_log.h"
#include "esp/sync/gossip/neighbour_averaging.h"
#include "esp/sync/local/divergent_strategy.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr size_t kAhead = 2;  // maximum number of units in flight

enum class CombineTime { before, during, after };
struct GossipMode {
  std::string_view name;
  CombineTime when;
};
constexpr GossipMode kGossipModes[] = {{"adapt_then_combine", CombineTime::after},
                                       {"combine_then_adapt", CombineTime::before},
                                       {"adapt_with_combine", CombineTime::during}};

class Gossip final : public DivergentStrategy {
 public:
  explicit Gossip(const Setup& setup)
      : DivergentStrategy(setup),
        when_(find_row("sync.gossip_mode", kGossipModes, setup.options.gossip_mode).when),
        topology_(make_topology(setup.options.topology, num_replicas())),
        gap_(spectral_gap(topology_)),
        neighbours_(peers_, setup.context),
        compression_(compression()) {
    if (compression_) {
      if (topology_.turns.size() > 1)
        throw UsageError(
            "sync.compress with method gossip: needs a fixed graph, and the neighbours of this topology change every "
            "step. Use another sync.topology.");
      moves_.emplace(peers_, setup.context, *compression_, setup.options.gossip_step);
    }
    const MixingMatrix& first = topology_.at(0);
    size_t most = 0;
    for (int i = 0; i < num_replicas(); ++i) most = std::max(most, out_neighbours(first, i).size());
    note(fmt::format("gossip: {} of {} {}, at most {} out-neighbours each; spectral gap {:.6f}{}", topology_.name,
                     num_replicas(), setup.options.hierarchical ? "nodes" : "replicas", most, gap_,
                     topology_.turns.size() > 1 ? fmt::format(" over {} steps", topology_.turns.size()) : ""));
  }

  std::vector<ReplicaMetric> take_metrics() override {
    std::vector<ReplicaMetric> all = DivergentStrategy::take_metrics();
    if (!all.empty()) all.push_back({"spectral_gap", gap_});
    return all;
  }
  std::vector<ExtraState> extra_state() override {
    std::vector<ExtraState> all = DivergentStrategy::extra_state();
    if (y_.defined()) {
      all.push_back({"tracked", y_});
      all.push_back({"gradient", before_});
    }
    if (moves_)
      for (ExtraState& one : moves_->state()) all.push_back(std::move(one));
    return all;
  }
  void begin_at(int64_t step) override {
    DivergentStrategy::begin_at(step);
    y_ = before_ = {};
    if (moves_) moves_->reset();
  }
  void resume_at(int64_t step, bool equal) override {
    DivergentStrategy::resume_at(step, equal);
    if (setup_.options.tracking && step > 0) make_tracked();
    if (moves_ && step > 0) begin_moves();
  }

 private:
  // True if the average of `step` covers all replicas: every `period` steps.
  bool is_global_average(int64_t step) const {
    return setup_.options.period > 0 && (step + 1) % setup_.options.period == 0;
  }
  // true on the first rank of a node, which exchanges with other nodes; without a hierarchy on every rank
  bool exchanges() const { return !node_ || node_->rank() == 0; }
  int64_t average_before() const { return step() - 1; }  // event number of the average before the current step

  void begin_moves() {
    std::vector<Tensor> all;
    for (size_t unit = 0; unit < num_units(); ++unit) all.push_back(x(unit));
    moves_->begin(all);
    for (std::string& line : compression_->take_notes()) note(std::move(line));
  }

  void before_gradients() override {
    if (moves_ && !moves_->is_initialised()) begin_moves();  // the first step: all replicas start with equal weights
    // no average before step 0: all replicas start with equal weights
    if (when_ == CombineTime::before && step() > 0) combine(average_before());
    if (when_ == CombineTime::during && !is_global_average(step()) && exchanges())
      for (size_t unit = 0; unit < num_units(); ++unit)
        in_flight_.push_back(neighbours_.start(topology_.at(step()), x(unit)));
  }

  void with_gradients() override {
    if (setup_.options.tracking) track();
    if (when_ != CombineTime::during) return;
    if (is_global_average(step())) return average();
    for (size_t unit = 0; unit < num_units(); ++unit) {
      if (exchanges()) neighbours_.combine(in_flight_[unit]);
      broadcast_in_node(x(unit));
      changed(unit);
    }
    in_flight_.clear();
  }

  void synchronise() override {
    if (when_ == CombineTime::after) combine(step());
  }

  void combine(int64_t step) {
    if (is_global_average(step)) return average();
    if (moves_) {
      for (size_t unit = 0; unit < num_units(); ++unit) moves_->mix(topology_.at(step), unit, x(unit), step);
    } else {
      mix(topology_.at(step), [this](size_t unit) { return x(unit); });
    }
    for (size_t unit = 0; unit < num_units(); ++unit) changed(unit);
  }

  // Averages the tensor piece(unit) of every unit with the neighbours. At most kAhead units are in flight.
  template <typename F>
  void mix(const MixingMatrix& mixing, F&& piece) {
    std::deque<NeighbourAveraging::PendingExchange> pending_exchanges;
    const auto finish_oldest = [&] {
      const Tensor mixed = pending_exchanges.front().own;
      if (exchanges()) neighbours_.combine(pending_exchanges.front());
      broadcast_in_node(mixed);
      pending_exchanges.pop_front();
    };
    for (size_t unit = 0; unit < num_units(); ++unit) {
      if (pending_exchanges.size() == kAhead) finish_oldest();
      pending_exchanges.push_back(exchanges() ? neighbours_.start(mixing, piece(unit))
                                              : NeighbourAveraging::PendingExchange{nullptr, piece(unit), {}, {}});
    }
    while (!pending_exchanges.empty()) finish_oldest();
  }

  void broadcast_in_node(const Tensor& of_first) {
    if (node_) node_->broadcast(of_first.data(), static_cast<size_t>(of_first.count()), of_first.dtype(), 0);
  }

  void make_tracked() {
    const auto made = [&] {
      return tensor::zeros(setup_.context, {parameters_.count()}, setup_.storage, device::MemoryCategory::gradient);
    };
    y_ = made();
    before_ = made();
  }

  // Gradient tracking: y ← W(y + g − g_before), where y starts as g. Replaces the gradient by y.
  void track() {
    const device::Stream& stream = setup_.context.stream;
    const Tensor g = gradients();
    const auto copy = [&](const Tensor& to, const Tensor& from) {
      kernel::cast(to.data(), to.dtype(), from.data(), from.dtype(), to.count(), stream);
    };
    if (!y_.defined()) {
      make_tracked();
      copy(before_, g);
      return copy(y_, g);
    }
    const kernel::WeightedTerm terms[] = {{y_.data(), 1}, {g.data(), 1}, {before_.data(), -1}};
    kernel::weighted_sum(y_.data(), terms, g.count(), g.dtype(), stream);
    copy(before_, g);
    if (is_global_average(average_before())) {
      peers_.wait(peers_.start_all_reduce(y_), "average");
      kernel::scale(y_.data(), 1.0 / num_replicas(), y_.count(), y_.dtype(), stream);
    } else {
      mix(topology_.at(average_before()), [this](size_t unit) {
        const auto& place = parameters_.units()[unit];
        return y_.slice(place.first, place.first + place.count);
      });
    }
    copy(g, y_);
  }

  const CombineTime when_;
  const GossipTopology topology_;
  const double gap_;
  NeighbourAveraging neighbours_;
  std::vector<NeighbourAveraging::PendingExchange> in_flight_;
  std::optional<StrategyCompression> compression_;
  std::optional<MoveLog> moves_;  // set if sync.compress is used
  Tensor y_, before_;             // gradient tracking: y and the previous gradient, flat over all units
};

}  // namespace

void check_gossip_words(const Options& o) {
  find_row("sync.gossip_mode", kGossipModes, o.gossip_mode);
  if (!names_graph_file(o.topology)) find_row("sync.topology", topologies(), o.topology);
}

std::unique_ptr<Strategy> make_gossip(const Setup& setup) {
  const Options& o = setup.options;
  if (o.period < 0)
    throw UsageError(fmt::format(
        "sync.period: got {}; expected a number of steps between global averages, or 0 (no global averages).",
        o.period));
  if (o.local_after != 0)
    throw UsageError(fmt::format(
        "sync.local_after: got {}; expected 0, because only methods local and diloco support it.", o.local_after));
  if (o.tracking && setup.storage != DType::f32 && setup.storage != DType::f64)
    throw UsageError(
        "sync.tracking = true: needs train.precision = \"fp32\" or \"fp64\", because it sums differences of "
        "gradients.");
  return std::make_unique<Gossip>(setup);
}

}  // namespace esp::sync
