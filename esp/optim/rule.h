// The update rule of an optimizer, independent of state storage: the state per element, and one update of a run of
// elements. Elementwise: any partition of the elements gives the same bits. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "esp/kernel/optimizer_step.h"
#include "esp/optim/optimizer.h"

namespace esp::optim {

struct UpdateStep {
  double lr = 0, grad_scale = 1;
  int64_t t = 1;       // from 1
  bool decay = false;  // whether weight decay applies to this run
};

class Rule {
 public:
  virtual ~Rule() = default;
  virtual std::span<const std::string_view> slots() const = 0;  // of "m" and "v"
  virtual void update(const kernel::StepBuffers& buffers, const UpdateStep& step,
                      const device::Stream& stream) const = 0;
  // Updates many runs; overridden where launches cost more than a run.
  virtual void update_all(std::span<const kernel::StepBuffers> buffers, std::span<const UpdateStep> steps,
                          const device::Stream& stream) const {
    for (size_t i = 0; i < buffers.size(); ++i) update(buffers[i], steps[i], stream);
  }
};

std::unique_ptr<Rule> make_rule(const OptimizerOptions& options);  // UsageError lists the known names

// A run of one owned range with uniform weight decay.
struct DecayRun {
  int64_t begin = 0, end = 0;  // in the unit
  bool decay = false;
};
std::vector<DecayRun> decay_runs(const nn::ParameterList& parameters, const UnitRange& range);

}  // namespace esp::optim
