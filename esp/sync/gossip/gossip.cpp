#include "esp/sync/gossip/gossip.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/sync/gossip/neighbours.h"
#include "esp/sync/gossip/told_moves.h"
#include "esp/sync/local/own_copies.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr size_t kAhead = 2;  // units under way at once

enum class When { before, during, after };
struct Mode {
  std::string_view name;
  When when;
};
constexpr Mode kModes[] = {
    {"adapt_then_combine", When::after}, {"combine_then_adapt", When::before}, {"adapt_with_combine", When::during}};

class Gossip final : public OwnCopies {
 public:
  explicit Gossip(const Setup& setup)
      : OwnCopies(setup),
        when_(find_row("sync.gossip_mode", kModes, setup.options.gossip_mode).when),
        topology_(make_topology(setup.options.topology, num_copies())),
        gap_(spectral_gap(topology_)),
        neighbours_(peers_, setup.context),
        compression_(compression()) {
    if (compression_) {
      if (topology_.turns.size() > 1)
        throw UsageError("sync.compress with gossip: neighbours must stay the same, and in this graph they take turns");
      moves_.emplace(peers_, setup.context, *compression_, setup.options.gossip_step);
    }
    const Mixing& first = topology_.at(0);
    size_t most = 0;
    for (int i = 0; i < num_copies(); ++i) most = std::max(most, listeners(first, i).size());
    note(fmt::format("gossip: {} of {} {}, each tells at most {}; spectral gap {:.6f}{}", topology_.name, num_copies(),
                     setup.options.hierarchical ? "nodes" : "copies", most, gap_,
                     topology_.turns.size() > 1 ? fmt::format(" over {} steps", topology_.turns.size()) : ""));
  }

  std::vector<Measure> take_measures() override {
    std::vector<Measure> all = OwnCopies::take_measures();
    if (!all.empty()) all.push_back({"spectral_gap", gap_});
    return all;
  }
  std::vector<Remembered> remembered() override {
    std::vector<Remembered> all = OwnCopies::remembered();
    if (y_.defined()) {
      all.push_back({"tracked", y_});
      all.push_back({"gradient", before_});
    }
    if (moves_)
      for (Remembered& one : moves_->state()) all.push_back(std::move(one));
    return all;
  }
  void begin_at(int64_t step) override {
    OwnCopies::begin_at(step);
    y_ = before_ = {};
    if (moves_) moves_->forget();
  }
  void go_on_at(int64_t step, bool equal) override {
    OwnCopies::go_on_at(step, equal);
    if (setup_.options.tracking && step > 0) make_tracked();
    if (moves_ && step > 0) begin_moves();
  }

 private:
  // Every so many averages one is of all.
  bool of_all(int64_t step) const { return setup_.options.period > 0 && (step + 1) % setup_.options.period == 0; }
  bool tells() const { return !node_ || node_->rank() == 0; }  // of its node, to others
  int64_t average_before() const { return step() - 1; }        // the step whose average this one begins with

  void begin_moves() {
    std::vector<Tensor> all;
    for (size_t unit = 0; unit < num_units(); ++unit) all.push_back(x(unit));
    moves_->begin(all);
    for (std::string& line : compression_->take_notes()) note(std::move(line));
  }

  void before_gradients() override {
    if (moves_ && !moves_->begun()) begin_moves();                       // they begin alike
    if (when_ == When::before && step() > 0) combine(average_before());  // they begin alike
    if (when_ == When::during && !of_all(step()) && tells())
      for (size_t unit = 0; unit < num_units(); ++unit)
        under_way_.push_back(neighbours_.start(topology_.at(step()), x(unit)));
  }

  void with_gradients() override {
    if (setup_.options.tracking) track();
    if (when_ != When::during) return;
    if (of_all(step())) return average();
    for (size_t unit = 0; unit < num_units(); ++unit) {
      if (tells()) neighbours_.combine(under_way_[unit]);
      tell_node(x(unit));
      changed(unit);
    }
    under_way_.clear();
  }

  void meet() override {
    if (when_ == When::after) combine(step());
  }

  void combine(int64_t step) {
    if (of_all(step)) return average();
    if (moves_) {
      for (size_t unit = 0; unit < num_units(); ++unit) moves_->mix(topology_.at(step), unit, x(unit), step);
    } else {
      mix(topology_.at(step), [this](size_t unit) { return x(unit); });
    }
    for (size_t unit = 0; unit < num_units(); ++unit) changed(unit);
  }

  // The average of neighbours of each `piece(unit)`, a few of them under way at once.
  template <typename F>
  void mix(const Mixing& mixing, F&& piece) {
    std::deque<Neighbours::Flight> flights;
    const auto land = [&] {
      const Tensor mixed = flights.front().own;
      if (tells()) neighbours_.combine(flights.front());
      tell_node(mixed);
      flights.pop_front();
    };
    for (size_t unit = 0; unit < num_units(); ++unit) {
      if (flights.size() == kAhead) land();
      flights.push_back(tells() ? neighbours_.start(mixing, piece(unit))
                                : Neighbours::Flight{nullptr, piece(unit), {}, {}});
    }
    while (!flights.empty()) land();
  }

  void tell_node(const Tensor& of_first) {
    if (node_) node_->broadcast(of_first.data(), static_cast<size_t>(of_first.count()), of_first.dtype(), 0);
  }

  void make_tracked() {
    const auto made = [&] {
      return tensor::zeros(setup_.context, {parameters_.count()}, setup_.storage, device::MemoryCategory::gradient);
    };
    y_ = made();
    before_ = made();
  }

  // y ← W(y + g − g_before), and the optimizer gets it for the gradient. It begins with g.
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
    if (of_all(average_before())) {
      peers_.wait(peers_.start_all_reduce(y_), "average");
      kernel::scale(y_.data(), 1.0 / num_copies(), y_.count(), y_.dtype(), stream);
    } else {
      mix(topology_.at(average_before()), [this](size_t unit) {
        const auto& place = parameters_.units()[unit];
        return y_.slice(place.first, place.first + place.count);
      });
    }
    copy(g, y_);
  }

  const When when_;
  const Topology topology_;
  const double gap_;
  Neighbours neighbours_;
  std::vector<Neighbours::Flight> under_way_;
  std::optional<Compression> compression_;
  std::optional<ToldMoves> moves_;  // with codes
  Tensor y_, before_;               // tracking: flat over all units
};

}  // namespace

void check_gossip_words(const Options& o) {
  find_row("sync.gossip_mode", kModes, o.gossip_mode);
  if (!names_graph_file(o.topology)) find_row("sync.topology", topologies(), o.topology);
}

std::unique_ptr<Strategy> make_gossip(const Setup& setup) {
  const Options& o = setup.options;
  if (o.period < 0)
    throw UsageError(fmt::format("sync.period = {}: 0 (never) or the steps between averages of all", o.period));
  if (o.local_after != 0)
    throw UsageError(fmt::format("sync.local_after = {}: it is of local and diloco", o.local_after));
  if (o.tracking && setup.storage != DType::f32 && setup.storage != DType::f64)
    throw UsageError("sync.tracking = true: differences of gradients want train.precision fp32 or fp64");
  return std::make_unique<Gossip>(setup);
}

}  // namespace esp::sync
