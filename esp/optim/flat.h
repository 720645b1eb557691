// What optimizers share: owned ranges cut into runs of equal weight decay, master copies, and state in flat tensors.
#pragma once

#include "esp/kernel/optimizer_step.h"
#include "esp/optim/optimizer.h"

namespace esp::optim {

class FlatOptimizer : public Optimizer {
 public:
  // `slots`: the state each element has, of "m" and "v".
  FlatOptimizer(const OptimizerOptions& options, nn::ParameterList& parameters, const tensor::Context& context,
                std::vector<Range> ranges, std::span<const std::string_view> slots);

  void step(double lr, double grad_scale) final;
  std::span<State> states() final { return states_; }
  int64_t num_steps() const final { return num_steps_; }
  void set_num_steps(int64_t steps) final { num_steps_ = steps; }
  void refresh_master() final;

 protected:
  // One run of elements: `t` counts from 1, `decay` is 0 where decay does not apply.
  virtual void update(const kernel::StepBuffers& buffers, double lr, double decay, double grad_scale, int64_t t) = 0;

  const OptimizerOptions options_;
  const tensor::Context context_;

 private:
  struct Run {
    int unit;
    int64_t begin, end;  // in the unit
    bool decay;
    size_t range;
  };
  void add_runs(const Range& range, size_t index);
  void* state_at(std::string_view slot, const Run& run);

  nn::ParameterList& parameters_;
  std::vector<Range> ranges_;
  std::vector<Run> runs_;
  std::vector<State> states_;
  int64_t num_steps_ = 0;
};

}  // namespace esp::optim
