#include "esp/sync/local/local.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/base/rng.h"
#include "esp/base/table.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/sync/local/own_copies.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

constexpr uint64_t kDrawing = 0x66656461;  // the purpose of these random numbers
constexpr int64_t kInnerSteps = 500;

class LocalSteps : public OwnCopies {
 public:
  LocalSteps(const Setup& setup, int64_t round) : OwnCopies(setup), round_(round) {}

 protected:
  int64_t local_steps() const { return step() - setup_.options.local_after; }
  bool ends_round() const { return (local_steps() + 1) % round_ == 0; }
  const int64_t round_;  // steps
};

struct Weighing {
  std::string_view name;
  bool by_tokens;
};
constexpr Weighing kWeighings[] = {{"equal", false}, {"tokens", true}};

class Local final : public LocalSteps {
 public:
  explicit Local(const Setup& setup)
      : LocalSteps(setup, setup.options.tau),
        by_tokens_(find_row("sync.client_weights", kWeighings, setup.options.client_weights).by_tokens) {
    if (setup.options.sample < 0 || setup.options.sample > num_copies())
      throw UsageError(
          fmt::format("sync.sample = {}: 0 (all) to the {} copies that average", setup.options.sample, num_copies()));
  }

  void counted(double tokens) override { tokens_ += tokens; }
  std::vector<Remembered> remembered() override {
    std::vector<Remembered> all = OwnCopies::remembered();
    if (by_tokens_) all.push_back({"tokens", Tensor::over(&tokens_, {1}, DType::f64)});
    return all;
  }

 private:
  void meet() override {
    if (!ends_round()) return;
    if (by_tokens_ || setup_.options.sample > 0) {
      average(weight());
    } else {
      average();
    }
    if (setup_.options.average_state) average_states();
    tokens_ = 0;
  }

  double weight() {
    const std::vector<int> drawn =
        drawn_clients(setup_.options.seed, local_steps() / round_, num_copies(), setup_.options.sample);
    const bool counts = std::binary_search(drawn.begin(), drawn.end(), peers_.rank());
    if (!by_tokens_) return counts ? 1.0 / static_cast<double>(drawn.size()) : 0;
    double mine = tokens_;
    if (node_) node_->all_reduce(&mine, &mine, 1, DType::f64, comm::ReduceOp::sum);
    if (!counts) mine = 0;
    double all = mine;
    peers_.wait(peers_.start_all_reduce(Tensor::over(&all, {1}, DType::f64)), "average");
    return all > 0 ? mine / all : (counts ? 1.0 / static_cast<double>(drawn.size()) : 0);
  }

  const bool by_tokens_;
  double tokens_ = 0;  // read in this round
};

class DiLoCo final : public LocalSteps {
 public:
  explicit DiLoCo(const Setup& setup)
      : LocalSteps(setup, setup.options.period == 0 ? kInnerSteps : setup.options.period) {}

  std::vector<Remembered> remembered() override {
    std::vector<Remembered> all = OwnCopies::remembered();
    if (theta_.defined()) {
      all.push_back({"outer", theta_, true});
      all.push_back({"velocity", velocity_, true});
    }
    return all;
  }
  void begin_at(int64_t step) override {
    OwnCopies::begin_at(step);
    theta_ = velocity_ = {};
  }
  void go_on_at(int64_t step, bool equal) override {
    OwnCopies::go_on_at(step, equal);
    if (local_steps() > 0) make_outer();
  }

 private:
  void make_outer() {
    const auto made = [&] {
      return tensor::zeros(setup_.context, {parameters_.count()}, x(0).dtype(), device::MemoryCategory::optimizer);
    };
    theta_ = made();
    velocity_ = made();
  }
  Tensor of_unit(const Tensor& all, size_t unit) const {
    const auto& place = parameters_.units()[unit];
    return all.slice(place.first, place.first + place.count);
  }

  // The first round begins where the copies are.
  void before_gradients() override {
    if (theta_.defined()) return;
    make_outer();
    for (size_t unit = 0; unit < num_units(); ++unit)
      kernel::cast(of_unit(theta_, unit).data(), theta_.dtype(), x(unit).data(), x(unit).dtype(), x(unit).count(),
                   setup_.context.stream);
  }

  void meet() override {
    if (!ends_round()) return;
    const device::Stream& stream = setup_.context.stream;
    double apart = 0;
    sum_units(
        [&](size_t unit, const Tensor& sum) {
          const kernel::WeightedTerm way_back[] = {{of_unit(theta_, unit).data(), 1}, {x(unit).data(), -1}};
          kernel::weighted_sum(sum.data(), way_back, sum.count(), sum.dtype(), stream);
        },
        [&](size_t unit, const Tensor& sum) {
          kernel::scale(sum.data(), 1.0 / num_copies(), sum.count(), sum.dtype(), stream);
          apart += distance(unit, sum);
          step_outer(unit, sum);
        });
    measured(apart);
    set_equal(true);
  }

  // ‖x_i − x̄‖², where x̄ = θ − Δ. Uses up x, which is about to be θ.
  double distance(size_t unit, const Tensor& delta) {
    const Tensor& mine = x(unit);
    const kernel::WeightedTerm terms[] = {{mine.data(), 1}, {of_unit(theta_, unit).data(), -1}, {delta.data(), 1}};
    kernel::weighted_sum(mine.data(), terms, mine.count(), mine.dtype(), setup_.context.stream);
    return kernel::sum_of_squares(mine.data(), mine.count(), mine.dtype(), setup_.context.stream);
  }

  void step_outer(size_t unit, const Tensor& delta) {
    const double lr = setup_.options.outer_lr, momentum = setup_.options.outer_momentum;
    const device::Stream& stream = setup_.context.stream;
    const Tensor theta = of_unit(theta_, unit), u = of_unit(velocity_, unit);
    const kernel::WeightedTerm velocity[] = {{u.data(), momentum}, {delta.data(), 1}};
    kernel::weighted_sum(u.data(), velocity, u.count(), u.dtype(), stream);
    const kernel::WeightedTerm moved[] = {{theta.data(), 1}, {delta.data(), -lr}, {u.data(), -lr * momentum}};
    kernel::weighted_sum(theta.data(), moved, theta.count(), theta.dtype(), stream);
    kernel::cast(x(unit).data(), x(unit).dtype(), theta.data(), theta.dtype(), theta.count(), stream);
    changed(unit);
  }

  Tensor theta_, velocity_;  // flat over all units
};

void want(bool holds, std::string_view key, const auto& given, std::string_view wanted) {
  if (!holds) throw UsageError(fmt::format("sync.{} = {}: {}", key, given, wanted));
}

}  // namespace

std::vector<int> drawn_clients(uint64_t seed, int64_t round, int num_clients, int64_t sample) {
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

std::unique_ptr<Strategy> make_local(const Setup& setup) {
  want(setup.options.tau >= 1, "tau", setup.options.tau, "at least one step is wanted between averages");
  want(setup.options.local_after >= 0, "local_after", setup.options.local_after, "0 or more steps");
  return std::make_unique<Local>(setup);
}

std::unique_ptr<Strategy> make_diloco(const Setup& setup) {
  const Options& o = setup.options;
  want(o.period >= 0, "period", o.period, fmt::format("inner steps of a round; 0: {}", kInnerSteps));
  want(o.local_after >= 0, "local_after", o.local_after, "0 or more steps");
  want(o.outer_lr > 0, "outer_lr", o.outer_lr, "more than 0 is wanted");
  want(o.outer_momentum >= 0 && o.outer_momentum < 1, "outer_momentum", o.outer_momentum, "at least 0 and below 1");
  return std::make_unique<DiLoCo>(setup);
}

}  // namespace esp::sync
