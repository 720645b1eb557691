// Optimizer with in-memory state, stored flat beside the elements it belongs to.
#pragma once

#include "esp/optim/rule.h"

namespace esp::optim {

class FlatOptimizer final : public Optimizer {
 public:
  FlatOptimizer(std::unique_ptr<Rule> rule, const nn::ParameterList& parameters, const tensor::Context& context,
                std::vector<OptimizerShard> owned, bool split_master = false);

  void step(double lr, double grad_scale) override;
  std::span<OptimizerState> states() override { return states_; }
  int64_t num_steps() const override { return num_steps_; }
  void set_num_steps(int64_t steps) override { num_steps_ = steps; }
  void refresh_master() override;

 private:
  struct FlatShard {
    OptimizerShard owned;
    std::vector<DecayRun> runs;
    size_t first_state, num_states;  // in states_
    bool split;                      // the master copy is stored as the lower 16 bits
  };
  void* state_at(const FlatShard& part, std::string_view slot, int64_t at);  // null: none
  OptimizerState split_master_of(const OptimizerShard& owned) const;

  const std::unique_ptr<Rule> rule_;
  const tensor::Context context_;
  std::vector<FlatShard> parts_;
  std::vector<OptimizerState> states_;
  int64_t num_steps_ = 0;
  std::vector<kernel::StepBuffers> buffers_;  // of one step, kept so that later ones allocate nothing
  std::vector<UpdateStep> steps_;
};

}  // namespace esp::optim
