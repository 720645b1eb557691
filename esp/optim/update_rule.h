// The update rule of an optimizer (AdamW, Adam, SGD): which states an element has, and how a range of elements is
// updated. A rule does not depend on how the states are stored. Updates are elementwise, so results are bit-identical
// for any partition of the elements. Thread-safe.
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
  int64_t t = 1;       // step number, from 1
  bool decay = false;  // whether weight decay applies to this range
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::span<const std::string_view> slots() const = 0;  // names of the states that each element has: "m", "v"
  virtual void update(const kernel::StepBuffers& buffers, const UpdateStep& step,
                      const device::Stream& stream) const = 0;
  // Updates many ranges. On a GPU, AdamW overrides this: one kernel launch per range would be too expensive.
  virtual void update_all(std::span<const kernel::StepBuffers> buffers, std::span<const UpdateStep> steps,
                          const device::Stream& stream) const {
    for (size_t i = 0; i < buffers.size(); ++i) update(buffers[i], steps[i], stream);
  }
};

// throws UsageError for an unknown name; the error lists the known names
std::unique_ptr<UpdateRule> make_update_rule(const OptimizerOptions& options);

// A contiguous range of an owned shard: weight decay applies to all of its elements or to none.
struct DecayRange {
  int64_t begin = 0, end = 0;  // element range [begin, end) in the unit
  bool decay = false;
};
std::vector<DecayRange> decay_ranges(const nn::ParameterList& parameters, const UnitRange& range);

}  // namespace esp::optim
