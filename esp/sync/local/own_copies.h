// What every method shares whose copies go their own ways: gossip, local steps, DiLoCo.
//
// Gradients add up within a node, among all (the first steps of post-local SGD) or not at all; that is all-reduce's
// business, told whom to talk to. What is averaged is x: the values, or where these are 16 bits long the optimizer's
// longer copy of them, unit by unit. Averages go a few units ahead of each other, so that one travels while another is
// applied; each is summed by a collective whose result has the same bits on every rank.
//
// In a hierarchy the copies of a node are one: they add their gradients every step and hold the same values. The
// copies with the same place in their nodes then average among themselves.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "esp/sync/compress/compression.h"
#include "esp/sync/ranks.h"
#include "esp/sync/whole_copies.h"

namespace esp::sync {

class OwnCopies : public Strategy, public Apart {
 public:
  explicit OwnCopies(const Setup& setup);

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override { inner_->fill(f); }
  std::vector<optim::Owned> owned() override { return inner_->owned(); }
  std::vector<optim::Held> held() override;  // the mean of the copies, until the next step; the first rank's
  void begin_step() override;
  void begin_pass(const Pass& pass) override { inner_->begin_pass(pass); }
  void begin_backward() override { inner_->begin_backward(); }
  void end_pass() override { inner_->end_pass(); }
  void finish() override;
  const std::vector<double>& sums_of_squares() override { return inner_->sums_of_squares(); }
  void after_step() override;
  Apart* apart() override { return this; }
  StepTimes times() const override { return {inner_->times().exposed_ms + peers_.exposed_ms() + exchanging_ms_}; }
  std::vector<std::string> take_notes() override { return std::exchange(notes_, {}); }
  std::vector<Group> groups() const override;

  void attach(optim::Optimizer& optimizer) override;
  Together together() const override;
  void counted(double) override {}
  void lend_mean() override;
  void take_back() override;
  bool equal() const override { return equal_; }
  std::vector<Remembered> remembered() override;
  void begin_at(int64_t step) override;
  void go_on_at(int64_t step, bool equal) override;
  std::vector<Measure> take_measures() override;

 protected:
  // What a method does in its step, which is number step(): before gradients are made; with them; and once this copy
  // has updated itself.
  virtual void before_gradients() {}
  virtual void with_gradients() {}
  virtual void meet() = 0;

  int64_t step() const { return step_; }
  int num_copies() const { return peers_.size(); }  // that may differ: nodes, in a hierarchy
  size_t num_units() const { return x_.size(); }
  const tensor::Tensor& x(size_t unit) const { return x_[unit]; }
  void changed(size_t unit);         // x is new: the values follow
  tensor::Tensor gradients() const;  // of all units, in one run
  tensor::Tensor scratch(const tensor::Tensor& like) const;

  // f(unit, sum): the sum over the copies of what `put` wrote into it, of x's shape and type; lent.
  using PutUnit = std::function<void(size_t unit, const tensor::Tensor& sum)>;
  void sum_units(const PutUnit& put, const PutUnit& f);
  // Every copy's x becomes what `make` writes, the mean; measures how far apart they were.
  void take_means(const PutUnit& make);
  // Codes of units, where sync.compress asks for them: made when x is known to be what it will be.
  std::optional<Compression> compression();
  template <typename F>
  void timed_exchange(F&& f) {  // counted as exposed
    const auto begun = Clock::now();
    f();
    exchanging_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
  }
  // Every copy's x becomes the mean of all, with weights that add up to one; measures how far apart they were.
  void average();
  void average(double weight);
  void average_states();  // those of the optimizer, but its longer copy of the values
  void measure_consensus();
  void measured(double apart) { consensus_ = mean_of(apart); }  // ‖x_i − x̄‖² of this copy
  void set_equal(bool equal) { equal_ = equal; }
  void note(std::string line) { notes_.push_back(std::move(line)); }

  const Setup setup_;
  nn::ParameterList& parameters_;
  std::unique_ptr<comm::Communicator> node_, across_;  // a node's copies; those of the same place in all nodes
  Ranks peers_;                                        // the copies that may differ, as this one sees them

 private:
  comm::Communicator* gradient_group() const;
  bool all_together() const { return step_ < setup_.options.local_after; }
  double mean_of(double value);  // over the copies
  void apply_average(const PutUnit& put, double factor);
  double take_mean(size_t unit, const tensor::Tensor& mean);  // returns how far x was away, squared

  std::unique_ptr<WholeCopies> inner_;
  optim::Optimizer* optimizer_ = nullptr;
  std::vector<tensor::Tensor> x_, own_, mean_;  // by unit; own_ while the mean is lent, mean_ after held
  int64_t step_ = 0;
  bool equal_ = true, mean_made_ = false;
  std::optional<double> consensus_;
  double exchanging_ms_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace esp::sync
