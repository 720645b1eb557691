#include "esp/sync/compress/one_bit_adam.h"

#include <fmt/format.h>

#include "esp/base/error.h"
#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"
#include "esp/kernel/frozen_rates.h"
#include "esp/kernel/weighted_sum.h"
#include "esp/optim/update_rule.h"
#include "esp/sync/all_reduce.h"
#include "esp/sync/compress/one_bit_momentum.h"
#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/replicated_strategy.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

// State of one unit after its variance is frozen.
struct FrozenUnit {
  Tensor master, m, v;  // tensors that the inner Adam allocated
  Tensor rate, mask;    // rate = 1/(√v + ε), mask = 1; both are 0 where v is 0
  std::unique_ptr<OneBitMomentum> exchange;
};

class OneBitAdam;

class OneBitOptimizer final : public optim::Optimizer {
 public:
  OneBitOptimizer(OneBitAdam& strategy, const optim::OptimizerOptions& options);
  void step(double lr, double grad_scale) override;
  std::span<optim::OptimizerState> states() override { return adam_->states(); }
  void states_restored() override { rates_made_ = false; }
  int64_t num_steps() const override { return adam_->num_steps(); }
  void set_num_steps(int64_t steps) override { adam_->set_num_steps(steps); }
  void refresh_master() override { adam_->refresh_master(); }
  std::vector<ExtraState> extra_state();

 private:
  void make_rates();
  void step_unit(size_t unit, double lr, double grad_scale);

  OneBitAdam& strategy_;
  const optim::OptimizerOptions options_;
  std::unique_ptr<optim::Optimizer> adam_;
  std::vector<FrozenUnit> units_;
  Tensor gradient_, change_;  // as large as the largest unit
  bool rates_made_ = false;
};

class OneBitAdam final : public Strategy {
 public:
  explicit OneBitAdam(const Setup& setup) : setup_(setup), inner_(make_bucketed(setup)) {}

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override { inner_->fill(f); }
  std::vector<optim::OptimizerShard> optimizer_shards() override { return inner_->optimizer_shards(); }
  std::vector<optim::ValueShard> checkpoint_shards() override {
    inner_->set_communicator(setup_.ranks);  // so that only rank 0 of all ranks writes weights
    return inner_->checkpoint_shards();
  }
  std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions& options) override {
    if (options.name != "adam" && options.name != "adamw")
      throw UsageError(fmt::format(
          "train.optimizer: got {}; expected adamw or adam, because sync.feedback = \"onebit_adam\".", options.name));
    auto made = std::make_unique<OneBitOptimizer>(*this, options);
    optimizer_ = made.get();
    return made;
  }

  void begin_step() override {
    exchanging_ms_ = 0;
    inner_->set_communicator(frozen() ? nullptr : setup_.ranks);
    inner_->begin_step();
  }
  void begin_pass(const PassOptions& pass) override { inner_->begin_pass(pass); }
  void begin_backward() override { inner_->begin_backward(); }
  void end_pass() override { inner_->end_pass(); }
  void finish() override { inner_->finish(); }
  const std::vector<double>& sums_of_squares() override {
    const std::vector<double>& own = inner_->sums_of_squares();
    if (!frozen() || size() == 1) return own;
    sums_.assign(own.size() * static_cast<size_t>(size()), 0);
    setup_.ranks->all_gather(own.data(), sums_.data(), own.size(), DType::f64);
    for (size_t unit = 0; unit < own.size(); ++unit) {
      double sum = 0;
      for (size_t rank = 0; rank < static_cast<size_t>(size()); ++rank) sum += sums_[rank * own.size() + unit];
      sums_[unit] = sum * size();
    }
    sums_.resize(own.size());
    return sums_;
  }
  void after_step() override { inner_->after_step(); }
  std::vector<ExtraState> extra_state() override { return optimizer_->extra_state(); }
  StepTimes times() const override { return {inner_->times().exposed_ms + exchanging_ms_}; }
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }

 private:
  friend class OneBitOptimizer;
  int size() const { return setup_.ranks ? setup_.ranks->size() : 1; }
  bool frozen() const { return optimizer_ && optimizer_->num_steps() >= setup_.options.onebit_warmup; }

  const Setup setup_;
  const std::unique_ptr<ReplicatedStrategy> inner_;
  OneBitOptimizer* optimizer_ = nullptr;
  std::vector<double> sums_;
  std::vector<std::string> notes_;
  double exchanging_ms_ = 0;
};

OneBitOptimizer::OneBitOptimizer(OneBitAdam& strategy, const optim::OptimizerOptions& options)
    : strategy_(strategy),
      options_(options),
      adam_(optim::make_optimizer(options, *strategy.setup_.parameters, strategy.setup_.context,
                                  strategy.optimizer_shards())) {
  const Setup& setup = strategy.setup_;
  const auto& units = setup.parameters->units();
  units_.resize(units.size());
  for (const optim::OptimizerState& state : adam_->states()) {
    FrozenUnit& unit = units_[static_cast<size_t>(state.range.unit)];
    (state.slot == "master" ? unit.master : state.slot == "m" ? unit.m : unit.v) = state.values;
  }
  int64_t longest = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    FrozenUnit& unit = units_[u];
    if (!unit.master.defined()) unit.master = units[u].values;
    AggregationSetup sum;
    sum.ranks = strategy.size() > 1 ? setup.ranks : nullptr;
    sum.context = setup.context;
    sum.count = units[u].count;
    sum.dtype = unit.m.dtype();
    unit.exchange = std::make_unique<OneBitMomentum>(sum);
    longest = std::max(longest, units[u].count);
  }
  const auto made = [&](int64_t count) {
    return tensor::empty(setup.context, {count}, units_.front().m.dtype(), device::MemoryCategory::buffer);
  };
  for (size_t u = 0; u < units.size(); ++u) {
    units_[u].rate = made(units[u].count);
    units_[u].mask = made(units[u].count);
  }
  gradient_ = made(longest);
  change_ = made(longest);
}

void OneBitOptimizer::make_rates() {
  for (FrozenUnit& unit : units_)
    kernel::frozen_rates(unit.rate.data(), unit.mask.data(), unit.v.data(), options_.eps, unit.v.count(),
                         unit.v.dtype(), strategy_.setup_.context.stream);
  rates_made_ = true;
}

void OneBitOptimizer::step(double lr, double grad_scale) {
  if (!strategy_.frozen()) return adam_->step(lr, grad_scale);
  const auto begun = Clock::now();
  if (num_steps() == strategy_.setup_.options.onebit_warmup)
    strategy_.notes_.push_back(
        fmt::format("1-bit Adam: variance frozen after {} steps; the momentum is now sent as signs", num_steps()));
  if (!rates_made_) make_rates();
  for (size_t unit = 0; unit < units_.size(); ++unit) step_unit(unit, lr, grad_scale);
  adam_->set_num_steps(num_steps() + 1);
  strategy_.exchanging_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

void OneBitOptimizer::step_unit(size_t index, double lr, double grad_scale) {
  const Setup& setup = strategy_.setup_;
  const auto& stream = setup.context.stream;
  const auto& place = setup.parameters->units()[index];
  FrozenUnit& unit = units_[index];
  const DType type = unit.m.dtype();
  const int64_t count = place.count;
  const std::vector<optim::DecayRange> runs =
      optim::decay_ranges(*setup.parameters, {static_cast<int>(index), 0, count});
  const auto each_decayed = [&](auto&& f) {  // calls f(offset, count) for each range of the unit that has weight decay
    for (const optim::DecayRange& run : runs)
      if (run.decay && options_.weight_decay != 0) f(run.begin, run.end - run.begin);
  };
  const auto at = [&](const Tensor& flat, int64_t first, int64_t n) { return flat.slice(first, first + n).data(); };

  // Gradient of the mean loss over this rank's tokens. The trainer scaled it for a sum over ranks, so it is multiplied
  // by the number of ranks.
  kernel::cast(gradient_.data(), type, place.grads.data(), place.grads.dtype(), count, stream);
  kernel::scale(gradient_.data(), grad_scale * strategy_.size(), count, type, stream);
  const bool decoupled = options_.name == "adamw";
  if (!decoupled)
    each_decayed([&](int64_t first, int64_t n) {
      const kernel::WeightedTerm terms[] = {{at(gradient_, first, n), 1},
                                            {at(unit.master, first, n), options_.weight_decay}};
      kernel::weighted_sum(at(gradient_, first, n), terms, n, type, stream);
    });
  unit.exchange->exchange(unit.m.data(), gradient_.data(), options_.beta1, unit.mask.data());

  kernel::write_values(change_.data(), WriteMode::overwrite, unit.m.data(), count, type, stream);
  kernel::multiply(change_.data(), unit.rate.data(), count, type, stream);
  if (decoupled)
    each_decayed([&](int64_t first, int64_t n) {
      const kernel::WeightedTerm terms[] = {{at(change_, first, n), 1},
                                            {at(unit.master, first, n), options_.weight_decay}};
      kernel::weighted_sum(at(change_, first, n), terms, n, type, stream);
    });
  const kernel::WeightedTerm moved[] = {{unit.master.data(), 1}, {change_.data(), -lr}};
  kernel::weighted_sum(unit.master.data(), moved, count, type, stream);
  if (unit.master.data() != place.values.data())
    kernel::cast(place.values.data(), place.values.dtype(), unit.master.data(), type, count, stream);
}

std::vector<ExtraState> OneBitOptimizer::extra_state() {
  std::vector<ExtraState> all;
  for (size_t unit = 0; unit < units_.size(); ++unit)
    add_numbered(all, "momentum", unit, units_[unit].exchange->errors().state());
  return all;
}

}  // namespace

void check_one_bit_adam(const Options& o) {
  if (o.method != "allreduce" || o.compress != "sign" || o.wire != "auto")
    throw UsageError(
        fmt::format("sync.feedback = \"onebit_adam\": got sync.method = \"{}\", sync.compress = \"{}\", "
                    "sync.wire = \"{}\"; expected sync.method = \"allreduce\", sync.compress = \"sign\", "
                    "sync.wire = \"auto\".",
                    o.method, o.compress, o.wire));
  if (o.onebit_warmup < 1)
    throw UsageError(
        fmt::format("sync.onebit_warmup: got {}; expected at least 1 (the variance needs one step).", o.onebit_warmup));
}

std::unique_ptr<Strategy> make_one_bit_adam(const Setup& setup) {
  return std::make_unique<OneBitAdam>(setup);
}

}  // namespace esp::sync
