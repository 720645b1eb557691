#include "esp/sync/local/local.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/sync/local/divergent_strategy.h"
#include "esp/sync/local/server_mean.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr uint64_t kDrawing = 0x66656461;  // random stream of client sampling
constexpr int64_t kInnerSteps = 500;

// Rounds of local steps. θ denotes the weights at the start of a round. θ is stored only if the change relative to θ is
// communicated (DiLoCo, compression).
class LocalSteps : public DivergentStrategy {
 public:
  LocalSteps(const Setup& setup, int64_t round, bool from_theta)
      : DivergentStrategy(setup),
        round_(round),
        from_theta_(from_theta || setup.options.compress != "none"),
        compression_(compression()) {}

  std::vector<ExtraState> extra_state() override {
    std::vector<ExtraState> all = DivergentStrategy::extra_state();
    if (!theta_.defined()) return all;
    all.push_back({"outer", theta_, true});
    for (ExtraState& one : extra_state_of(exchanges_)) all.push_back(std::move(one));
    return all;
  }
  void begin_at(int64_t step) override {
    DivergentStrategy::begin_at(step);
    theta_ = {};
    exchanges_.clear();
  }
  void resume_at(int64_t step, bool equal) override {
    DivergentStrategy::resume_at(step, equal);
    if (from_theta_ && local_steps() > 0) make_theta();
  }

 protected:
  int64_t local_steps() const { return step() - setup_.options.local_after; }
  bool ends_round() const { return (local_steps() + 1) % round_ == 0; }
  bool is_compressed() const { return compression_.has_value(); }
  Tensor theta(size_t unit) const { return of_unit(theta_, unit); }
  Tensor of_unit(const Tensor& all, size_t unit) const {
    const auto& place = parameters_.units()[unit];
    return all.slice(place.first, place.first + place.count);
  }
  Tensor outer_state() const {
    return tensor::zeros(setup_.context, {parameters_.count()}, x(0).dtype(), device::MemoryCategory::optimizer);
  }

  // Stores θ of the first round: the current weights.
  void before_gradients() override {
    if (!from_theta_ || theta_.defined()) return;
    make_theta();
    for (size_t unit = 0; unit < num_units(); ++unit)
      kernel::cast(theta(unit).data(), theta_.dtype(), x(unit).data(), x(unit).dtype(), x(unit).count(),
                   setup_.context.stream);
  }

  // Calls f(unit, Δ) with Δ = Σ weight·(θ − x_i), compressed if configured. If Δ is the mean change, this measures the
  // consensus distance. Overwrites x, so f must compute x again.
  template <typename F>
  void with_changes(double weight, F&& f) {
    const auto put = [&](size_t unit, const Tensor& sum) {
      const kernel::WeightedTerm way_back[] = {{theta(unit).data(), 1}, {x(unit).data(), -1}};
      kernel::weighted_sum(sum.data(), way_back, sum.count(), sum.dtype(), setup_.context.stream);
      if (is_compressed()) kernel::scale(sum.data(), weight, sum.count(), sum.dtype(), setup_.context.stream);
    };
    double apart = 0;
    const auto use = [&](size_t unit, const Tensor& delta) {
      if (!is_compressed()) kernel::scale(delta.data(), weight, delta.count(), delta.dtype(), setup_.context.stream);
      apart += distance(unit, delta);
      f(unit, delta);
      changed(unit);
    };
    if (!is_compressed()) {
      sum_units(put, use);
    } else {
      for (size_t unit = 0; unit < num_units(); ++unit) {
        const Tensor own = scratch(x(unit)), delta = scratch(x(unit));
        put(unit, own);
        timed_exchange([&] { exchanges_[unit]->exchange(delta.data(), own.data()); });
        use(unit, delta);
      }
      for (std::string& line : compression_->take_notes()) note(std::move(line));
    }
    measured(apart);
    set_equal(true);
  }

  const int64_t round_;  // steps per round

 private:
  void make_theta() {
    theta_ = outer_state();
    exchanges_.clear();
    if (!is_compressed()) return;
    for (size_t unit = 0; unit < num_units(); ++unit) {
      const auto& place = parameters_.units()[unit];
      exchanges_.push_back(compression_->summed({place.first, place.first + place.count, unit, x(unit).dtype()},
                                                num_replicas() > 1 ? peers_.comm() : nullptr, setup_.context));
    }
  }

  // Returns ‖x_i − x̄‖², where x̄ = θ − Δ. Overwrites x.
  double distance(size_t unit, const Tensor& delta) {
    const Tensor& mine = x(unit);
    const kernel::WeightedTerm terms[] = {{mine.data(), 1}, {theta(unit).data(), -1}, {delta.data(), 1}};
    kernel::weighted_sum(mine.data(), terms, mine.count(), mine.dtype(), setup_.context.stream);
    return kernel::sum_of_squares(mine.data(), mine.count(), mine.dtype(), setup_.context.stream);
  }

  const bool from_theta_;
  std::optional<StrategyCompression> compression_;
  std::vector<std::unique_ptr<Feedback>> exchanges_;  // one error feedback per unit
  Tensor theta_;                                      // flat vector over all units
};

struct ClientWeighting {
  std::string_view name;
  bool by_tokens;
};
constexpr ClientWeighting kClientWeightings[] = {{"equal", false}, {"tokens", true}};

struct AverageMethod {
  std::string_view name;
  bool by_servers;
};
constexpr AverageMethod kAverageMethods[] = {{"allreduce", false}, {"servers", true}};

class Local final : public LocalSteps {
 public:
  explicit Local(const Setup& setup)
      : LocalSteps(setup, setup.options.tau, false),
        by_tokens_(find_row("sync.client_weights", kClientWeightings, setup.options.client_weights).by_tokens),
        by_servers_(find_row("sync.average_over", kAverageMethods, setup.options.average_over).by_servers) {
    if (by_servers_) check_servers();
    if (setup.options.sample < 0 || setup.options.sample > num_replicas())
      throw UsageError(fmt::format("sync.sample: got {}; expected 0 (all) to {}, the number of replicas.",
                                   setup.options.sample, num_replicas()));
  }

  void set_local_tokens(double tokens) override { tokens_ += tokens; }
  std::vector<ExtraState> extra_state() override {
    std::vector<ExtraState> all = LocalSteps::extra_state();
    if (by_tokens_) all.push_back({"tokens", Tensor::borrow(&tokens_, {1}, DType::f64)});
    return all;
  }

 private:
  void synchronise() override {
    if (!ends_round()) return;
    if (is_compressed()) {
      with_changes(by_tokens_ ? weight() : 1.0 / num_replicas(), [&](size_t unit, const Tensor& delta) {
        const Tensor from = theta(unit);
        const kernel::WeightedTerm moved[] = {{from.data(), 1}, {delta.data(), -1}};
        kernel::weighted_sum(from.data(), moved, from.count(), from.dtype(), setup_.context.stream);
        kernel::cast(x(unit).data(), x(unit).dtype(), from.data(), from.dtype(), from.count(), setup_.context.stream);
      });
    } else if (by_servers_) {
      average_at_servers();
    } else if (by_tokens_ || setup_.options.sample > 0) {
      average(weight());
    } else {
      average();
    }
    if (setup_.options.average_state) average_states();
    tokens_ = 0;
  }

  double weight() {
    const std::vector<int> drawn =
        sampled_clients(setup_.options.seed, local_steps() / round_, num_replicas(), setup_.options.sample);
    const bool counts = std::binary_search(drawn.begin(), drawn.end(), peers_.rank());
    if (!by_tokens_) return counts ? 1.0 / static_cast<double>(drawn.size()) : 0;
    double mine = tokens_;
    if (node_) node_->all_reduce(&mine, &mine, 1, DType::f64, comm::ReduceOp::sum);
    if (!counts) mine = 0;
    double all = mine;
    peers_.wait(peers_.start_all_reduce(Tensor::borrow(&all, {1}, DType::f64)), "average");
    return all > 0 ? mine / all : (counts ? 1.0 / static_cast<double>(drawn.size()) : 0);
  }

  void check_servers() const {
    const PsOptions& ps = setup_.options.ps;
    if (ps.servers < 0 || ps.servers > num_replicas() || ps.server_ranks != "beside")
      throw UsageError(
          fmt::format("sync.average_over = \"servers\": got sync.servers = {} and sync.server_ranks = \"{}\"; expected "
                      "sync.servers from 1 to {}, or 0 for all, and sync.server_ranks = \"beside\".",
                      ps.servers, ps.server_ranks, num_replicas()));
  }

  // FedAvg as in the paper: the sampled clients push their weights, the servers average them, and all replicas pull the
  // mean.
  void average_at_servers() {
    if (num_replicas() == 1) return;
    const std::vector<int> drawn =
        sampled_clients(setup_.options.seed, local_steps() / round_, num_replicas(), setup_.options.sample);
    std::vector<double> counts(static_cast<size_t>(num_replicas()), 1);
    if (by_tokens_) {
      double mine = tokens_;
      if (node_) node_->all_reduce(&mine, &mine, 1, DType::f64, comm::ReduceOp::sum);
      peers_.comm()->all_gather(&mine, counts.data(), 1, DType::f64);
    }
    std::vector<MeanClient> clients;
    double all = 0;
    for (const int one : drawn) all += counts[static_cast<size_t>(one)];
    for (const int one : drawn)
      clients.push_back(
          {one, all > 0 ? counts[static_cast<size_t>(one)] / all : 1.0 / static_cast<double>(drawn.size())});
    const int64_t asked = setup_.options.ps.servers;
    const int num_servers = asked > 0 ? static_cast<int>(asked) : num_replicas();
    take_means([&](size_t unit, const Tensor& mean) {
      server_mean(peers_, setup_.context, mean, x(unit), clients, num_servers);
    });
  }

  const bool by_tokens_, by_servers_;
  double tokens_ = 0;  // tokens that this replica has read in this round
};

class DiLoCo final : public LocalSteps {
 public:
  explicit DiLoCo(const Setup& setup)
      : LocalSteps(setup, setup.options.period == 0 ? kInnerSteps : setup.options.period, true) {}

  std::vector<ExtraState> extra_state() override {
    std::vector<ExtraState> all = LocalSteps::extra_state();
    if (velocity_.defined()) all.push_back({"velocity", velocity_, true});
    return all;
  }
  void begin_at(int64_t step) override {
    LocalSteps::begin_at(step);
    velocity_ = {};
  }
  void resume_at(int64_t step, bool equal) override {
    LocalSteps::resume_at(step, equal);
    if (local_steps() > 0) velocity_ = outer_state();
  }

 private:
  void before_gradients() override {
    LocalSteps::before_gradients();
    if (!velocity_.defined()) velocity_ = outer_state();
  }

  void synchronise() override {
    if (ends_round())
      with_changes(1.0 / num_replicas(), [&](size_t unit, const Tensor& delta) { step_outer(unit, delta); });
  }

  void step_outer(size_t unit, const Tensor& delta) {
    const double lr = setup_.options.outer_lr, momentum = setup_.options.outer_momentum;
    const device::Stream& stream = setup_.context.stream;
    const Tensor from = theta(unit), u = of_unit(velocity_, unit);
    const kernel::WeightedTerm velocity[] = {{u.data(), momentum}, {delta.data(), 1}};
    kernel::weighted_sum(u.data(), velocity, u.count(), u.dtype(), stream);
    const kernel::WeightedTerm moved[] = {{from.data(), 1}, {delta.data(), -lr}, {u.data(), -lr * momentum}};
    kernel::weighted_sum(from.data(), moved, from.count(), from.dtype(), stream);
    kernel::cast(x(unit).data(), x(unit).dtype(), from.data(), from.dtype(), from.count(), stream);
  }

  Tensor velocity_;  // flat vector over all units
};

void require(bool holds, std::string_view key, const auto& given, std::string_view expected) {
  if (!holds) throw UsageError(fmt::format("sync.{}: got {}; {}", key, given, expected));
}

}  // namespace

std::vector<int> sampled_clients(uint64_t seed, int64_t round, int num_clients, int64_t sample) {
  std::vector<int> clients(static_cast<size_t>(num_clients));
  std::iota(clients.begin(), clients.end(), 0);
  if (sample == 0 || sample >= num_clients) return clients;
  for (size_t i = 0; i < static_cast<size_t>(sample); ++i) {
    const uint64_t index = static_cast<uint64_t>(round) * static_cast<uint64_t>(num_clients) + i;
    std::swap(clients[i], clients[i + random_bits(seed, kDrawing, index) % (clients.size() - i)]);
  }
  clients.resize(static_cast<size_t>(sample));
  std::sort(clients.begin(), clients.end());
  return clients;
}

void check_local_words(const Options& o) {
  find_row("sync.client_weights", kClientWeightings, o.client_weights);
  find_row("sync.average_over", kAverageMethods, o.average_over);
  require(o.tau >= 1, "tau", o.tau, "expected at least 1 step between averages");
  require(o.local_after >= 0, "local_after", o.local_after, "expected at least 0 steps");
  require(o.period >= 0, "period", o.period,
          fmt::format("expected a number of steps between averages, or 0 (gossip: no global averages; diloco: {})",
                      kInnerSteps));
  require(o.outer_lr > 0, "outer_lr", o.outer_lr, "expected a number > 0");
  require(o.outer_momentum >= 0 && o.outer_momentum < 1, "outer_momentum", o.outer_momentum,
          "expected a number in [0, 1)");
}

std::unique_ptr<Strategy> make_local(const Setup& setup) {
  check_local_words(setup.options);
  return std::make_unique<Local>(setup);
}

std::unique_ptr<Strategy> make_diloco(const Setup& setup) {
  check_local_words(setup.options);
  return std::make_unique<DiLoCo>(setup);
}

}  // namespace esp::sync
