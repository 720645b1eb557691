// Base of the strategies with divergent replicas: gossip, local SGD, DiLoCo.
//
// Gradients are summed within a node, over all ranks (the first steps of post-local SGD) or not at all, by an
// all-reduce strategy over that group. Averaging works on x: the weights, or the optimizer's fp32 master weights where
// weights have 16 bits, unit by unit. A few averages are pipelined, so that one is communicated while another is
// applied. Each sum uses a collective with bit-identical results on all ranks.
//
// In a hierarchy the ranks of a node form one replica: they sum gradients every step and hold equal weights. Ranks with
// the same local index then average across nodes.
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
  std::vector<optim::OptimizerShard> owned() override { return inner_->owned(); }
  std::vector<optim::ValueShard> held() override;  // the mean of all replicas, until the next step; of the first rank
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
  // Hooks of a method in step step(): before the gradients, with the gradients, and after the local update.
  virtual void before_gradients() {}
  virtual void with_gradients() {}
  virtual void synchronise() = 0;

  int64_t step() const { return step_; }
  int num_replicas() const { return peers_.size(); }  // of divergent replicas: nodes, in a hierarchy
  size_t num_units() const { return x_.size(); }
  const tensor::Tensor& x(size_t unit) const { return x_[unit]; }
  void changed(size_t unit);         // call after writing x: updates the weights from it
  tensor::Tensor gradients() const;  // of all units, contiguous
  tensor::Tensor scratch(const tensor::Tensor& like) const;

  // Calls f(unit, sum), where sum adds over all replicas what `put` wrote; sum has the shape and type of x and is
  // borrowed.
  using PutUnit = std::function<void(size_t unit, const tensor::Tensor& sum)>;
  void sum_units(const PutUnit& put, const PutUnit& f);
  // Sets x of every replica to the mean that `make` writes; measures the consensus distance.
  void take_means(const PutUnit& make);
  // Compression of units as sync.compress configures it; created once x is allocated.
  std::optional<StrategyCompression> compression();
  template <typename F>
  void timed_exchange(F&& f) {  // adds to the exposed time
    const auto begun = Clock::now();
    f();
    exchanging_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }
  // Sets x of every replica to the (weighted) mean; the weights sum to one. Measures the consensus distance.
  void average();
  void average(double weight);
  void average_states();  // optimizer state except the master weights
  void measure_consensus();
  void measured(double apart) { consensus_ = mean_of(apart); }  // ‖x_i − x̄‖² of this replica
  void set_equal(bool equal) { equal_ = equal; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

  const Setup setup_;
  nn::ParameterList& parameters_;
  std::unique_ptr<comm::Communicator> node_, across_;  // ranks of this node; ranks with this local index on all nodes
  TimedCommunicator peers_;                            // over the divergent replicas

 private:
  comm::Communicator* gradient_group() const;
  bool all_reduces_gradients() const { return step_ < setup_.options.local_after; }
  double mean_of(double value);  // over all replicas
  void apply_average(const PutUnit& put, double factor);
  double take_mean(size_t unit, const tensor::Tensor& mean);  // returns the squared distance of x

  std::unique_ptr<ReplicatedStrategy> inner_;
  optim::Optimizer* optimizer_ = nullptr;
  std::vector<tensor::Tensor> x_, own_, mean_;  // by unit; own_ is set during load_average, mean_ after held
  int64_t step_ = 0;
  bool equal_ = true, mean_made_ = false;
  std::optional<double> consensus_;
  double exchanging_ms_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace esp::sync
