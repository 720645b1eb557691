// ZB-H1 (Qi et al. 2023, Zero Bubble Pipeline Parallelism): 1F1B whose backward makes the input gradients only, which
// the stage before waits for. Weight gradients, which nobody waits for, fill the gaps: stage k lets k of them wait.
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<Action> zb_h1_actions(const ScheduleShape& shape, int stage) {
  std::vector<Action> actions;
  int num_backward = 0, num_weights = 0;
  for (const Action& action : one_f_one_b_actions(shape, stage)) {
    actions.push_back(action);
    if (action.kind != ActionKind::backward) continue;
    ++num_backward;
    if (num_backward - num_weights > stage) actions.push_back(weights_of(num_weights++));
  }
  while (num_weights < shape.micro_batches) actions.push_back(weights_of(num_weights++));
  return actions;
}

}  // namespace esp::parallel
