// One micro-batch at a time through all stages and back: what a split model costs without a pipeline. One stage
// computes, the others wait.
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<Action> none_actions(const ScheduleShape& shape, int) {
  std::vector<Action> actions;
  for (int i = 0; i < shape.micro_batches; ++i) {
    actions.push_back(forward_of(i));
    actions.push_back(backward_of(i));
  }
  return actions;
}

}  // namespace esp::parallel
