// One micro-batch at a time through all stages and back: the cost of a partitioned model without pipelining. One stage
// computes while the others wait.
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<PipelineAction> none_actions(const ScheduleShape& shape, int) {
  std::vector<PipelineAction> actions;
  for (int i = 0; i < shape.micro_batches; ++i) {
    actions.push_back(forward_of(i));
    actions.push_back(backward_of(i));
  }
  return actions;
}

}  // namespace esp::parallel
