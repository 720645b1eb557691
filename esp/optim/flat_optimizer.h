// Optimizer whose states are flat arrays in memory, in the same element order as the parameters.
#pragma once

#include "esp/optim/update_rule.h"

namespace esp::optim {

class FlatOptimizer final : public Optimizer {
 public:
  FlatOptimizer(std::unique_ptr<UpdateRule> rule, const nn::ParameterList& parameters, const tensor::Context& context,
                std::vector<OptimizerShard> owned, bool split_master = false);

  void step(double lr, double grad_scale) override;
  std::span<OptimizerState> states() override { return states_; }
  int64_t num_steps() const override { return num_steps_; }
  void set_num_steps(int64_t steps) override { num_steps_ = steps; }
  void refresh_master() override;

 private:
  struct FlatShard {
    OptimizerShard owned;
    std::vector<DecayRange> ranges;
    size_t first_state, num_states;  // states_[first_state, first_state + num_states) belong to this shard
    bool split;                      // only the lower 16 bits of the master copy are stored
  };
  void* state_at(const FlatShard& part, std::string_view slot, int64_t at);  // null if the optimizer has no such state
  OptimizerState split_master_of(const OptimizerShard& owned) const;

  const std::unique_ptr<UpdateRule> rule_;
  const tensor::Context context_;
  std::vector<FlatShard> parts_;
  std::vector<OptimizerState> states_;
  int64_t num_steps_ = 0;
  // kernel arguments of the current step; the vector is reused to avoid allocation
  std::vector<kernel::StepBuffers> buffers_;
  std::vector<UpdateStep> steps_;
};

}  // namespace esp::optim
