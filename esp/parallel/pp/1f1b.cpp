// 1F1B (PipeDream-Flush, Narayanan et al. 2021): forwards until the first gradient arrives, then one backward after
// every forward. The step takes as long as with GPipe, but stage k holds the activations of at most P − k
// micro-batches.
#include <algorithm>

#include "esp/parallel/pp/stage_actions.h"

namespace esp::parallel {

std::vector<PipelineAction> one_f_one_b_actions(const ScheduleShape& shape, int stage) {
  const int m = shape.micro_batches, warm_up = std::min(shape.stages - stage - 1, m);
  std::vector<PipelineAction> actions;
  for (int i = 0; i < warm_up; ++i) actions.push_back(forward_of(i));
  for (int i = 0; i < m - warm_up; ++i) {
    actions.push_back(forward_of(warm_up + i));
    actions.push_back(backward_of(i));
  }
  for (int i = m - warm_up; i < m; ++i) actions.push_back(backward_of(i));
  return actions;
}

}  // namespace esp::parallel
