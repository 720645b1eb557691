// Base of the strategies in which each rank holds the whole model and communicates only gradients.
#pragma once

#include "esp/sync/norm.h"
#include "esp/sync/strategy.h"
#include "esp/sync/timed_communicator.h"

namespace esp::sync {

class ReplicatedStrategy : public Strategy {
 public:
  explicit ReplicatedStrategy(const Setup& setup);

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override;
  std::vector<optim::OptimizerShard> optimizer_shards() override { return optim::all_units(parameters_); }
  // All replicas are equal, so only the first rank saves weights.
  std::vector<optim::ValueShard> checkpoint_shards() override;
  void begin_step() override;
  const std::vector<double>& sums_of_squares() override { return norm_.sums(ranks_); }
  void after_step() override {}
  StepTimes times() const override { return {ranks_.exposed_ms()}; }
  // Sets the ranks over which gradients are summed from the next step on. Null: no sum, this rank only.
  void set_communicator(comm::Communicator* ranks) { ranks_.set_communicator(ranks); }

 protected:
  // Elements [begin, end) of the flat buffer that holds the gradients of all units.
  tensor::Tensor gradients(int64_t begin, int64_t end) const { return gradients_.slice(begin, end); }

  const Setup setup_;
  nn::ParameterList& parameters_;
  TimedCommunicator ranks_;
  const DType wire_;

 private:
  tensor::Tensor materialize();

  const tensor::Tensor gradients_;
  SquaredNorm norm_;
};

}  // namespace esp::sync
