// Base of the strategies with divergent replicas: gossip, local SGD, DiLoCo.
//
// Gradients are summed within a node, or over all ranks (the first steps of post-local SGD), or not at all; an
// all-reduce strategy over that group sums them. x is what replicas average, unit by unit: the weights, or the
// optimizer's fp32 master weights if weights have 16 bits. While one average is applied, the next ones are
// communicated. Every sum uses a collective with bit-identical results on all ranks.
//
// In a hierarchy the ranks of a node form one replica: they sum gradients every step and hold equal weights. The ranks
// with the same local index then average across nodes.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "esp/sync/compress/strategy_compression.h"
#include "esp/sync/replicated_strategy.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class DivergentStrategy : public Strategy, public DivergentReplicas {
 public:
  explicit DivergentStrategy(const Setup& setup);

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override { inner_->fill(f); }
  std::vector<optim::OptimizerShard> optimizer_shards() override { return inner_->optimizer_shards(); }
  // The mean of all replicas, valid until the next step. Only the first rank saves it.
  std::vector<optim::ValueShard> checkpoint_shards() override;
  void begin_step() override;
  void begin_pass(const PassOptions& pass) override { inner_->begin_pass(pass); }
  void begin_backward() override { inner_->begin_backward(); }
  void end_pass() override { inner_->end_pass(); }
  void finish() override;
  const std::vector<double>& sums_of_squares() override { return inner_->sums_of_squares(); }
  void after_step() override;
  DivergentReplicas* divergent_replicas() override { return this; }
  StepTimes times() const override { return {inner_->times().exposed_ms + peers_.exposed_ms() + exchanging_ms_}; }
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }
  std::vector<NamedGroup> groups() const override;

  void attach(optim::Optimizer& optimizer) override;
  ReductionScope reduction_scope() const override;
  void set_local_tokens(double) override {}
  void load_average() override;
  void restore_own() override;
  bool equal() const override { return equal_; }
  std::vector<ExtraState> extra_state() override;
  void begin_at(int64_t step) override;
  void resume_at(int64_t step, bool equal) override;
  std::vector<ReplicaMetric> take_metrics() override;

 protected:
  // Hooks for the methods, called in the current step (step()): before the gradients are computed, once they are
  // complete, and after the local update.
  virtual void before_gradients() {}
  virtual void with_gradients() {}
  virtual void synchronise() = 0;

  int64_t step() const { return step_; }
  // number of divergent replicas; in a hierarchy the number of nodes
  int num_replicas() const { return peers_.size(); }
  size_t num_units() const { return x_.size(); }
  const tensor::Tensor& x(size_t unit) const { return x_[unit]; }
  void changed(size_t unit);         // updates the weights from x; call it after writing x
  tensor::Tensor gradients() const;  // gradients of all units as one contiguous tensor
  tensor::Tensor scratch(const tensor::Tensor& like) const;

  // For each unit: `put` writes this replica's term, all replicas' terms are added, and f(unit, sum) gets the result.
  // `sum` has the shape and type of x; f does not own it.
  using PutUnit = std::function<void(size_t unit, const tensor::Tensor& sum)>;
  void sum_units(const PutUnit& put, const PutUnit& f);
  // Sets x of each unit to the mean that `make` writes. Measures the consensus distance.
  void take_means(const PutUnit& make);
  // Compression of x as sync.compress configures it; nullopt without compression. Call after x is allocated.
  std::optional<StrategyCompression> compression();
  template <typename F>
  void timed_exchange(F&& f) {  // runs f and adds its duration to the exposed time
    const auto begun = Clock::now();
    f();
    exchanging_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }
  // Sets x of every replica to the mean, or to the weighted mean (the weights of all replicas sum to 1). Measures the
  // consensus distance.
  void average();
  void average(double weight);
  void average_states();  // averages the optimizer state except the master weights
  void measure_consensus();
  // `apart` is ‖x_i − x̄‖² of this replica; stores the mean over all replicas as the metric
  void measured(double apart) { consensus_ = mean_of(apart); }
  void set_equal(bool equal) { equal_ = equal; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

  const Setup setup_;
  nn::ParameterList& parameters_;
  // node_: the ranks of this node. inter_node_: the ranks of all nodes with the same local index.
  std::unique_ptr<comm::Communicator> node_, inter_node_;
  TimedCommunicator peers_;  // one rank of each divergent replica

 private:
  comm::Communicator* gradient_group() const;
  bool all_reduces_gradients() const { return step_ < setup_.options.local_after; }
  double mean_of(double value);  // the mean of `value` over all replicas
  void apply_average(const PutUnit& put, double factor);
  double take_mean(size_t unit, const tensor::Tensor& mean);  // sets x of this unit to the mean; returns ‖x − mean‖²

  std::unique_ptr<ReplicatedStrategy> inner_;
  optim::Optimizer* optimizer_ = nullptr;
  // One tensor per unit. own_: the replica's weights, saved during load_average. mean_: the mean that checkpoint_shards
  // returned.
  std::vector<tensor::Tensor> x_, own_, mean_;
  int64_t step_ = 0;
  bool equal_ = true, mean_made_ = false;
  std::optional<double> consensus_;
  double exchanging_ms_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace esp::sync
