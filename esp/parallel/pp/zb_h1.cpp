// ZB-H1 (Qi et al. 2023, Zero Bubble Pipeline Parallelism): 1F1B whose backward computes only the input gradients, for
// which the previous stage waits. No stage waits for weight gradients, so they fill the bubbles: stage k delays k of
// them.
#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<PipelineAction> zb_h1_actions(const ScheduleShape& shape, int stage) {
  std::vector<PipelineAction> actions;
  int num_backward = 0, num_weights = 0;
  for (const PipelineAction& action : one_f_one_b_actions(shape, stage)) {
    actions.push_back(action);
    if (action.kind != ActionKind::backward) continue;
    ++num_backward;
    if (num_backward - num_weights > stage) actions.push_back(weights_of(num_weights++));
  }
  while (num_weights < shape.micro_batches) actions.push_back(weights_of(num_weights++));
  return actions;
}

}  // namespace esp::parallel
