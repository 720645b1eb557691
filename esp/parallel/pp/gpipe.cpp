// GPipe (Huang et al. 2019): all forwards, then all backwards. Between the two phases, the activations of all
// micro-batches are live.
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<PipelineAction> gpipe_actions(const ScheduleShape& shape, int) {
  std::vector<PipelineAction> actions;
  for (int i = 0; i < shape.micro_batches; ++i) actions.push_back(forward_of(i));
  for (int i = 0; i < shape.micro_batches; ++i) actions.push_back(backward_of(i));
  return actions;
}

}  // namespace esp::parallel
