// What every method shares in which each rank holds the whole model and only gradients travel.
#pragma once

#include "esp/sync/norm.h"
#include "esp/sync/ranks.h"
#include "esp/sync/strategy.h"

namespace esp::sync {

class WholeCopies : public Strategy {
 public:
  explicit WholeCopies(const Setup& setup);

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override;
  std::vector<optim::Owned> owned() override { return optim::everything(parameters_); }
  std::vector<optim::Held> held() override;  // the first rank's: the others hold the same
  void begin_step() override;
  const std::vector<double>& sums_of_squares() override { return norm_.sums(ranks_); }
  void after_step() override {}
  StepTimes times() const override { return {ranks_.exposed_ms()}; }
  // Whose gradients add up from the next step on; null: nobody else's.
  void talk_to(comm::Communicator* ranks) { ranks_.talk_to(ranks); }

 protected:
  // Elements [begin, end) over all units: the gradients of all units lie in one run.
  tensor::Tensor gradients(int64_t begin, int64_t end) const { return gradients_.slice(begin, end); }

  const Setup setup_;
  nn::ParameterList& parameters_;
  Ranks ranks_;
  const DType wire_;

 private:
  tensor::Tensor materialize();

  const tensor::Tensor gradients_;
  SquaredNorm norm_;
};

}  // namespace esp::sync
